/**
 * The operations of `PoolCall` (protocol.ts): here `limit`, decided as durable-objects/operations/limits.ts decides
 * it.
 */
export const CALLS = `
local NOTHING, ONES = {}, {}
for index = 1, #call.rules do NOTHING[index], ONES[index] = 0, 1 end
-- By the hold's id for those calls that have one, then by the idempotency key.
local answerKey = KEYS[3 + #call.rules]
local requestKey = call.request and KEYS[#KEYS] or nil

local function leases(costs)
  for index, book in ipairs(books) do
    if book.rule.isLeased and costs[index] > 0 then return true end
  end
  return false
end

-- What was answered to the same call before; to another one under the same idempotency key it says so.
local function repeated()
  local earlier = recall(requestKey)
  if earlier and earlier.request ~= call.request then return { conflict = earlier.request or '' } end
  return earlier
end

local calls = {}

calls.limit = function(hold)
  local earlier = repeated()
  if earlier and not earlier.isDenied then return earlier end
  -- A denial that was counted is not counted again, but decided anew.
  local rules, isAdmitted, hasCounted = decideTogether(call.cost, hold, earlier ~= nil)
  if requestKey and takesAny(call.cost) and (isAdmitted or hasCounted) then
    local answer = { request = call.request, rules = rules, isDenied = not isAdmitted }
    if isAdmitted then
      defineCharges()
      answer.charge, answer.atMs = chargeOf(call.cost), text(nowMs)
    end
    remember(requestKey, answer)
  end
  return { rules = rules, isLeasing = isAdmitted and leases(call.cost) }
end

`;

/** All other operations. Holds are answered as durable-objects/operations/claims.ts answers them. */
export const OTHER_CALLS = `
-- Of one key. A denial looks at all of them, for 2 us each, and Redis does nothing else meanwhile.
local MAX_HOLDS = 2000

local function inFigures(costs)
  local rules = withoutTaking(costs)
  return { rules = rules }
end

function holdText(hold)
  return '{"id":' .. cjson.encode(hold.id) .. ',"expiresAfterMs":' .. text(hold.ttlMs)
    .. (hold.token and ',"fencingToken":"' .. hold.token .. '"' or '') .. '}'
end

-- The answer of a hold; of one that is still there, how long it still lasts.
local function heldAgain(answer)
  local hold = findHold('h:' .. answer.id)
  local expiresAfterMs = hold and hold.atMs - nowMs or answer.ttlMs
  return { rules = answer.rules, hold = { id = answer.id, ttlMs = expiresAfterMs, token = answer.token } }
end

calls.hold = function()
  local earlier = repeated()
  if earlier then return earlier.conflict and earlier or heldAgain(earlier) end
  -- The same message has been there before.
  local known = recall(answerKey)
  local id = 'h:' .. call.id
  if known then return known.rules and findHold(id) and heldAgain(known) or { isMissing = true } end
  -- Those that have expired are written off with the next change.
  if redis.call('ZCARD', HOLDS) - pool.due >= MAX_HOLDS then return { full = MAX_HOLDS } end
  local function place() placeHold(id, nowMs + call.ttlMs, byName(call.cost)) end
  local rules, isAdmitted = decideTogether(call.cost, { takes = function() return true end, place = place })
  if not isAdmitted then return { rules = rules } end
  local token = leases(call.cost) and takeTokens(1) or nil
  local answer = { request = call.request, rules = rules, id = call.id, ttlMs = call.ttlMs, token = token }
  remember(answerKey, answer)
  if requestKey then remember(requestKey, answer) end
  return heldAgain(answer)
end

-- Late or again, it is answered and changes nothing.
calls.settle = function()
  local id, known = 'h:' .. call.id, recall(answerKey)
  local hold = findHold(id)
  if not hold then
    -- Only what was cancelled is cancelled again.
    if not known or (not call.used and not known.isCancelled) then return { isMissing = true } end
    return known.isSettled and not known.isCancelled and known or inFigures(NOTHING)
  end
  removeHold(id)
  for index, book in ipairs(books) do
    local used = call.used and call.used[index] or 0
    if used < 0 then used = hold.units[book.name] or 0 end
    if used > 0 then book.state = book.rule.algorithm.debit(book.rule, book.state, nowMs, used) end
  end
  local answer = inFigures(NOTHING)
  answer.isSettled, answer.isCancelled = true, not call.used
  remember(answerKey, answer)
  return answer
end

calls.renew = function()
  local id, known = 'h:' .. call.id, recall(answerKey)
  local hold = findHold(id)
  if not hold then return { isMissing = true } end
  placeHold(id, nowMs + call.ttlMs, hold.units)
  if known then remember(answerKey, known) end
  return { expiresAfterMs = call.ttlMs }
end

calls.refund = function()
  local earlier = repeated()
  if earlier then return earlier end
  local charged = call.isNamed and recall(KEYS[#KEYS - 1])
  if call.isNamed and not (charged and charged.charge) then return { isMissing = true } end
  if charged then
    defineCharges()
    uncharge(charged)
  end
  for index, book in ipairs(books) do
    if call.cost[index] > 0 and not charged then
      book.state = book.rule.algorithm.credit(book.rule, book.state, nowMs, call.cost[index])
    end
    pool.isChanged = pool.isChanged or book.state ~= book.before
  end
  local answer = inFigures(NOTHING)
  answer.request = call.request
  remember(requestKey, answer)
  return answer
end

calls.peek = function()
  defineHolders()
  readHolders()
  local answer = inFigures(call.cost)
  readRest()
  local report = { outstanding = 0, holds = 0, leases = 0, queueLength = 0, reclaimed = numberIn('reclaimed') }
  for _, book in ipairs(books) do report.outstanding = math.max(report.outstanding, book.held.all) end
  for _, hold in ipairs(pool.live) do
    local isHold, isLease = false, false
    for _, book in ipairs(books) do
      local hasUnits = (hold.units[book.name] or 0) > 0 and not isRegional(hold.id)
      if hasUnits and book.rule.isLeased then isLease = true elseif hasUnits then isHold = true end
    end
    report.holds = report.holds + (isHold and 1 or 0)
    report.leases = report.leases + (isLease and 1 or 0)
  end
  local function add(said)
    report.leases = report.leases + said.leases
    report.queueLength = report.queueLength + said.queueLength
  end
  -- Of who asks, what it says now.
  if holding then add(holding) end
  for id, record in pairs(pool.holders) do
    if not holding or id ~= holding.holder then add(record) end
  end
  local counts = {}
  for name, count in pairs(report) do counts[#counts + 1] = '"' .. name .. '":' .. text(count) end
  answer.report = '{' .. table.concat(counts, ',') .. '}'
  return answer
end

-- As new, but for what holders may still be spending: that stays apart.
calls.reset = function()
  readRest()
  local ids = {}
  for _, hold in ipairs(pool.live) do
    if not isRegional(hold.id) then ids[#ids + 1] = hold.id end
  end
  for _, id in ipairs(ids) do removeHold(id) end
  for _, book in ipairs(books) do book.state = nil end
  -- Whoever resets knows that nobody has slots of before writes were lost, or does not mind.
  pool.blockedMs = 0
  set('blocked', nil)
  set('reclaimed', nil)
  set('reset', text(math.max(nowMs, numberIn('reset') + 1)))
  return inFigures(NOTHING)
end
`;
