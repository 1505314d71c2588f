/** core/accounts/account.ts in Lua: the decision of each rule beside the units outstanding, and of all. */
export const DECISIONS = `
local function decide(book, cost)
  local rule = book.rule
  local decision = rule.algorithm.decide(rule, book.state, nowMs, cost, book.held.all)
  if decision.allowed then
    local state = cost == 0 and book.state or decision.state
    if book.held.all > 0 then decision.resetAfterMs = wholeAtMs(book, state) - nowMs end
  elseif book.held.all > 0 then
    defineWaits()
    withHolds(book, book.state, decision, cost)
    if decision.counted then withHolds(book, decision.counted.state, decision.counted, cost) end
  end
  if rule.isLeased and pool.blockedMs > nowMs then
    defineWaits()
    return blocked(book, decision, cost)
  end
  return decision
end

local function inJson(book, decision, isAllowed)
  local retryAfterMs = isAllowed and 0 or decision.retryAfterMs
  book.quoted = book.quoted or encode(book.name)
  return '{"name":' .. book.quoted
    .. format(',"success":%s,"limit":%d,"remaining":%d', tostring(isAllowed), book.rule.capacity, decision.remaining)
    .. (decision.quotaRemaining and ',"quotaRemaining":' .. text(decision.quotaRemaining) or '')
    .. ',"resetAfterMs":' .. text(decision.resetAfterMs)
    .. ',"retryAfterMs":' .. (retryAfterMs and text(retryAfterMs) or 'null')
    .. ',"reason":"' .. (isAllowed and 'ok' or decision.reason) .. '"'
    .. (book.refunded and ',"refunded":' .. text(book.refunded) or '') .. '}'
end

local function listed(parts) return '[' .. table.concat(parts, ',') .. ']' end

-- A rule's decision, with remaining units as they are while nothing is taken.
local function peek(book, cost)
  local decision = decide(book, cost)
  if decision.allowed and cost > 0 then decision = decide(book, 0) end
  return inJson(book, decision, decision.allowed), decision.allowed
end

-- The decisions of all rules, and whether they admit.
local function withoutTaking(costs)
  local rules, isAllowed = {}, true
  for index, book in ipairs(books) do
    local rule, isRuleAllowed = peek(book, costs[index] or 0)
    rules[index], isAllowed = rule, isAllowed and isRuleAllowed
  end
  return listed(rules), isAllowed
end

-- A denial. Rules that count denied units do so, unless the cost could never have passed.
local function denied(decisions, costs)
  local isNever, hasCounted, rules = false, false, {}
  for _, decision in ipairs(decisions) do
    isNever = isNever or (not decision.allowed and not decision.retryAfterMs)
  end
  for index, book in ipairs(books) do
    local decision = decisions[index]
    local counted = not isNever and decision.counted
    if counted then book.state, hasCounted = counted.state, true end
    if decision.allowed then
      rules[index] = peek(book, costs[index])
    else
      rules[index] = inJson(book, counted or decision, false)
    end
  end
  pool.isChanged = pool.isChanged or hasCounted
  return listed(rules), hasCounted
end

-- Units by the name of the rule, of all rules or only of those that lease.
local function byName(costs, isOnlyLeased)
  local units = {}
  for index, book in ipairs(books) do
    if book.rule.isLeased or not isOnlyLeased then units[book.name] = costs[index] end
  end
  return units
end

-- Takes what was admitted: it is used at once, or set apart by "hold", of all rules or only of those that lease.
local function take(decisions, costs, hold)
  for index, book in ipairs(books) do
    local isHeld = hold and costs[index] > 0 and (book.rule.isLeased or not hold.isOnlyLeased)
    if isHeld then
      book.state = book.rule.algorithm.noteHold(book.rule, book.state, nowMs)
    elseif costs[index] > 0 then
      book.state = decisions[index].state
    end
  end
  if hold then hold.place() end
  pool.isChanged = pool.isChanged or takesAny(costs)
  local rules = {}
  for index, book in ipairs(books) do
    local isOther = hold or costs[index] == 0
    rules[index] = inJson(book, isOther and decide(book, 0) or decisions[index], true)
  end
  return listed(rules)
end

-- Decides on a cost under every rule; one denial denies, and has been counted unless "isRepeated".
-- Returns the rules, whether it was admitted, and whether a denial was counted.
local function decideTogether(costs, hold, isRepeated)
  local decisions, isAdmitted = {}, true
  for index, book in ipairs(books) do
    decisions[index] = decide(book, costs[index])
    isAdmitted = isAdmitted and decisions[index].allowed
  end
  if isAdmitted then return take(decisions, costs, hold), true, false end
  if isRepeated then return (withoutTaking(costs)), false, false end
  local rules, hasCounted = denied(decisions, costs)
  return rules, false, hasCounted
end
`;

/** core/accounts/account.ts in Lua: which units are outstanding, who holds them, and until when. */
export const HOLDS = `
function isRegional(id) return string.sub(id, 1, 2) == 'r:' end

-- Units outstanding of a rule, also one that this policy does not have (any more).
local function heldOf(name)
  if not pool.held[name] then
    pool.held[name] = heldFrom(redis.call('HMGET', MAIN, 'o:' .. name)[1] or nil)
  end
  return pool.held[name]
end

-- cjson writes 14 digits.
function exactly(units)
  local exact = {}
  for name, value in pairs(units) do exact[name] = value < 1e14 and value or text(value) end
  return exact
end

-- Most holds have the same units as another one. They share a table that is never changed.
local unitsByText = {}

local function unitsIn(stored)
  if not stored then return {} end
  local units = unitsByText[stored]
  if units then return units end
  units = decode(stored)
  for name, value in pairs(units) do units[name] = tonumber(value) end
  unitsByText[stored] = units
  return units
end

-- Holds as they were found, soonest to expire first: { id, atMs, units by rule }.
local function holdsOf(found)
  local holds, fields = {}, {}
  for index = 1, #found, 2 do
    local at = #holds + 1
    holds[at], fields[at] = { id = found[index], atMs = tonumber(found[index + 1]) }, 'u:' .. found[index]
  end
  if #holds == 0 then return holds end
  local units = redis.call('HMGET', MAIN, unpack(fields))
  for index = 1, #holds do holds[index].units = unitsIn(units[index]) end
  return holds
end

local function readHolds(from)
  return holdsOf(redis.call('ZRANGE', HOLDS, text(from), text(from + CHUNK - 1), 'WITHSCORES'))
end

-- Counts a hold's units as outstanding, or no longer.
local function shift(hold, sign)
  pool.moves = pool.moves + 1
  for name, units in pairs(hold.units) do
    local held = heldOf(name)
    held.all = max(0, held.all + sign * units)
    if isRegional(hold.id) then held.regional = max(0, held.regional + sign * units) end
    held.isChanged = true
  end
end

-- Debits a hold that has expired at the instant of its expiry; what was leased is free.
local function expire(hold)
  shift(hold, -1)
  pool.changed[hold.id] = false
  pool.due = pool.due + 1
  local wasLeased = false
  for _, book in ipairs(books) do
    local units = hold.units[book.name] or 0
    if units > 0 and book.rule.isLeased then wasLeased = true end
    if units > 0 then book.state = book.rule.algorithm.debit(book.terms, book.state, hold.atMs, units) end
  end
  if wasLeased and not isRegional(hold.id) then note('reclaimed', text(numberIn('reclaimed') + 1)) end
end

function loadHolds(found)
  local from, holds = 0, holdsOf(found)
  while true do
    for _, hold in ipairs(holds) do
      if hold.atMs <= nowMs then expire(hold) else pool.live[#pool.live + 1] = hold end
    end
    pool.hasMore = #holds == CHUNK
    if not pool.hasMore or #pool.live > 0 then return end
    from = from + CHUNK
    holds = readHolds(from)
  end
end

-- The holds that were not read with the others: an exact wait may depend on any of them.
function readRest()
  if not pool.hasMore then return end
  pool.hasMore = false
  local known = {}
  for _, hold in ipairs(pool.live) do known[hold.id] = true end
  local from, holds = 0, nil
  repeat
    holds = readHolds(from)
    for _, hold in ipairs(holds) do
      local isKnown = known[hold.id] or pool.changed[hold.id] ~= nil
      if not isKnown then pool.live[#pool.live + 1] = hold end
    end
    from = from + CHUNK
  until #holds < CHUNK
  pool.moves = pool.moves + 1
  table.sort(pool.live, function(one, other) return one.atMs < other.atMs end)
end

function findHold(id)
  local live = pool.live
  for index = 1, #live do
    if live[index].id == id then return live[index], index end
  end
  if not pool.hasMore or not redis.call('ZSCORE', HOLDS, id) then return nil end
  readRest()
  return findHold(id)
end

function removeHold(id)
  local hold, index = findHold(id)
  if not hold then return end
  table.remove(pool.live, index)
  shift(hold, -1)
  pool.changed[id], pool.isChanged = false, true
end

-- Sets units apart, in place of what the id had. A holder without any units has no hold.
function placeHold(id, atMs, units)
  removeHold(id)
  local hold, isEmpty = { id = id, atMs = atMs, units = {} }, true
  for name, count in pairs(units) do
    if count > 0 then hold.units[name], isEmpty = count, false end
  end
  if isEmpty and isRegional(id) then return end
  local index = #pool.live + 1
  while index > 1 and pool.live[index - 1].atMs > atMs do index = index - 1 end
  table.insert(pool.live, index, hold)
  shift(hold, 1)
  pool.changed[id], pool.isChanged = hold, true
end

-- Tokens that were never given out, and are later than all that were. Returns the first.
function takeTokens(count)
  local first = max(numberIn('fence') + 1, nowMs * 1000)
  set('fence', text(first + count - 1))
  return text(first)
end
`;

/** When a rule will be untouched: `untouchedAtMs` of core/accounts/account.ts. */
export const WHOLE = `
-- The instant of the last hold's expiry. Of those that were not read only the latest is known.
local function lastExpiryMs(name)
  local lastMs, live = nowMs, pool.live
  for index = #live, 1, -1 do
    local hold = live[index]
    if not name or (hold.units[name] or 0) > 0 then
      lastMs = max(lastMs, hold.atMs)
      break
    end
  end
  if not pool.hasMore then return lastMs end
  return max(lastMs, tonumber(redis.call('ZRANGE', HOLDS, '-1', '-1', 'WITHSCORES')[2]))
end

-- From when on the rule is as untouched if nobody comes. With very many holds it may be sooner, never later.
local function computedWholeMs(book, state)
  local rule, outstanding, lastMs = book.rule, book.held.all, lastExpiryMs(book.name)
  if rule.isLeased or (outstanding == 0 and not state) then return lastMs end
  if outstanding == 0 then return max(lastMs, rule.algorithm.wholeAtMs(rule, state)) end
  return max(lastMs, rule.algorithm.wholeAfterMs(rule, state, book, lastMs, pool.live))
end

-- Computed several times in one call: remembered until holds or the state are others.
local function wholeAtMs(book, state)
  if book.wholeMs and book.wholeOf == state and book.wholeSince == pool.moves then return book.wholeMs end
  book.wholeMs, book.wholeOf, book.wholeSince = computedWholeMs(book, state), state, pool.moves
  return book.wholeMs
end

-- How long the state is needed: also where time returns units by other terms than those of the call.
local function lastsMs(book)
  local state, terms = book.state, book.terms
  local outlastsMs, isOther = state and book.rule.algorithm.outlastsMs, terms.limit ~= book.rule.limit
  isOther = isOther or terms.windowMs ~= book.rule.windowMs
  local under = isOther and computedWholeMs({ rule = terms, name = book.name, held = book.held }, state) or 0
  return max(wholeAtMs(book, state), under, outlastsMs and outlastsMs(terms, state) or 0)
end
`;

/** core/accounts/account.ts in Lua: how long a cost has to wait while holds expire one after another. */
export const WAITS = `
defineHolds()

local function leaseWaitMs(book, cost)
  local missing = cost + book.held.all - book.rule.capacity
  if missing <= 0 then return 0 end
  for _, hold in ipairs(pool.live) do
    missing = missing - (hold.units[book.name] or 0)
    if missing <= 0 then return hold.atMs - nowMs end
  end
  return nil
end

-- The exact wait for a cost that fits the capacity, all holds being used as they expire.
local function waitMs(book, state, cost)
  readRest()
  if book.rule.isLeased then return leaseWaitMs(book, cost) end
  local rule, name, outstanding, atMs, index = book.rule, book.name, book.held.all, nowMs, 1
  while true do
    local decision = rule.algorithm.decide(rule, state, atMs, cost, outstanding)
    if decision.allowed then return atMs - nowMs end
    while pool.live[index] and (pool.live[index].units[name] or 0) == 0 do index = index + 1 end
    local hold = pool.live[index]
    local passesAtMs = decision.retryAfterMs and atMs + decision.retryAfterMs
    if not hold or (passesAtMs and passesAtMs <= hold.atMs) then return passesAtMs and passesAtMs - nowMs end
    atMs = hold.atMs
    while pool.live[index] and pool.live[index].atMs <= atMs do
      local units = pool.live[index].units[name] or 0
      if units > 0 then state = rule.algorithm.debit(rule, state, atMs, units) end
      outstanding, index = outstanding - units, index + 1
    end
  end
end

-- The waits of a denial (or of what it is once it has been counted) while units are held.
function withHolds(book, state, denial, cost)
  denial.retryAfterMs = nil
  if cost <= book.rule.capacity then denial.retryAfterMs = waitMs(book, state, cost) end
  denial.resetAfterMs = wholeAtMs(book, state) - nowMs
end

-- After lost writes it is unknown who has leases: none are given until those from before have ended.
function blocked(book, decision, cost)
  local blockedMs = pool.blockedMs - nowMs
  local isNever = cost > book.rule.capacity
  local answer = { allowed = cost == 0, remaining = 0, resetAfterMs = max(decision.resetAfterMs, blockedMs) }
  if cost == 0 then return answer end
  answer.reason = isNever and 'cost-over-limit' or 'quota'
  if not isNever then answer.retryAfterMs = max(waitMs(book, nil, cost) or 0, blockedMs) end
  return answer
end
`;
