/** Answers to repeated calls, and the end of a call: everything is written, or nothing. */
export const ANSWERS = `
local DAY_MS = 86400000
-- Keys live this much longer than anything in them matters.
local SPARE_MS = 60000
-- Holds that expired are written off with the next change, or when there are so many of them.
local MAX_DUE = 32
-- What Lua can pass to a command at once is bounded.
local MAX_ARGUMENTS = 1000

-- What was remembered, unless the pool has been reset since.
local function recall(key)
  local stored = key and redis.call('GET', key)
  if not stored then return nil end
  local answer = decode(stored)
  if answer.reset ~= (pool.fields.reset or '0') then return nil end
  return answer
end

-- With "isKept" the answer stands as long as it would have. Without an answer, what was remembered is forgotten.
local function remember(key, answer, isKept)
  if not key then return end
  pool.answers[#pool.answers + 1] = { key = key, answer = answer, isKept = isKept }
  pool.isChanged = true
end

-- An answer stands for a day, and at least until the pool is as untouched.
local function writeAnswers(wholeMs)
  if #pool.answers == 0 then return end
  local untilMs = math.max(nowMs + DAY_MS, wholeMs)
  set('answers', text(math.max(numberIn('answers'), untilMs)))
  for _, each in ipairs(pool.answers) do
    if each.answer then each.answer.reset = pool.fields.reset or '0' end
    local value = each.answer and encode(each.answer)
    if not value then
      redis.call('DEL', each.key)
    elseif each.isKept then
      redis.call('SET', each.key, value, 'KEEPTTL')
    else
      redis.call('SET', each.key, value, 'PX', text(untilMs - clockMs))
    end
  end
end

local function send(command, key, arguments)
  for from = 1, #arguments, MAX_ARGUMENTS do
    redis.call(command, key, unpack(arguments, from, math.min(from + MAX_ARGUMENTS - 1, #arguments)))
  end
end

local function put(sets, deletes, field, value)
  if value then
    sets[#sets + 1], sets[#sets + 2] = field, value
  else
    deletes[#deletes + 1] = field
  end
end

local function writeHolds(sets, deletes)
  local placed, removed = {}, {}
  for id, hold in pairs(pool.changed) do
    if hold then
      placed[#placed + 1], placed[#placed + 2] = text(hold.atMs), id
    else
      removed[#removed + 1] = id
    end
    put(sets, deletes, 'u:' .. id, hold and encode(exactly(hold.units)))
  end
  for name, held in pairs(pool.held) do
    if held.isChanged then
      put(sets, deletes, 'o:' .. name, held.all > 0 and text(held.all) .. ' ' .. text(held.regional))
    end
  end
  send('ZADD', HOLDS, placed)
  send('ZREM', HOLDS, removed)
end

-- The instant from which the keys may be forgotten.
local function endsMs(wholeMs)
  -- Fencing tokens may be ahead of the clock, and go on rising afterwards.
  local untilMs = max(wholeMs, pool.blockedMs, numberIn('marked'), math.ceil(numberIn('fence') / 1000))
  if pool.fields.reset then untilMs = max(untilMs, nowMs + DAY_MS, numberIn('answers')) end
  return untilMs
end

-- A mark says that there was a write then. A pool whose writes end before that, or which began after it, has lost some.
local function isOlder(seen)
  local began = pool.fields.since
  local isOther = not began or tonumber(began) > seen.atMs or numberIn('now') < seen.atMs
  return isOther and nowMs < (seen.wholeMs or 0) and seen.atMs >= numberIn('lost')
end

local function save()
  if not pool.isChanged and pool.due < MAX_DUE then return end
  local wholeMs = lastExpiryMs(nil)
  for _, book in ipairs(books) do wholeMs = max(wholeMs, lastsMs(book)) end
  writeAnswers(wholeMs)
  local sets, deletes, keys = {}, {}, { MAIN }
  note('now', text(nowMs))
  if not pool.fields.since then note('since', pool.fields.now) end
  -- The keys live until then, or they would seem to be lost.
  if wholeMs > numberIn('marked') then note('marked', text(wholeMs)) end
  if pool.areHoldersChanged then note('holders', encode(pool.holderTexts)) end
  for field, value in pairs(pool.noted) do put(sets, deletes, field, value) end
  if next(pool.changed) then writeHolds(sets, deletes) end
  if pool.live[1] then keys[2] = HOLDS end
  for _, book in ipairs(books) do
    local rule, state = book.rule, book.state
    if state ~= book.before then
      local stored, more = state and rule.algorithm.write(state), state and rule.algorithm.more
      more = more and more(state)
      put(sets, deletes, 's:' .. book.name, stored)
      if more or book.hasMore then put(sets, deletes, 'g:' .. book.name, more and stored .. '|' .. more) end
      if rule.algorithm.save then rule.algorithm.save(rule, state) end
    end
    if rule.algorithm.save then keys[#keys + 1] = rule.logKey end
  end
  send('HSET', MAIN, sets)
  send('HDEL', MAIN, deletes)
  local lifetime = text(endsMs(wholeMs) - clockMs + SPARE_MS)
  for _, key in ipairs(keys) do redis.call('PEXPIRE', key, lifetime) end
end
`;

/** The operation `limit`, decided as in durable-objects/operations/limits.ts. */
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

-- The answer to the same call before; after another call with the same idempotency key a conflict.
local function repeated()
  local earlier = recall(requestKey)
  if earlier and earlier.request ~= call.request then return { conflict = earlier.request or '' } end
  return earlier
end

local calls = {}

calls.limit = function(hold)
  local earlier = repeated()
  if earlier and not earlier.isDenied then return earlier end
  local round = call.round
  -- A check of several denies again in its round.
  if earlier and round and tonumber(earlier.round or -1) >= round then
    earlier.isEarlier = true
    return earlier
  end
  -- A denial that was counted is not counted again, but decided anew.
  local rules, isAdmitted, hasCounted = decideTogether(call.cost, hold, earlier ~= nil)
  local answer = { request = call.request, rules = rules, isDenied = not isAdmitted, plan = call.plan }
  if round and not isAdmitted then answer.round = text(round) end
  if requestKey and takesAny(call.cost) and (isAdmitted or hasCounted or round) then
    if isAdmitted then
      defineCharges()
      answer.charge, answer.terms = chargeOf(call.cost)
      answer.atMs = text(nowMs)
    end
    remember(requestKey, answer)
  end
  return { rules = rules, isLeasing = isAdmitted and leases(call.cost), round = answer.round, plan = call.plan }
end
`;

/** All other operations of `PoolCall`. Holds are answered as in durable-objects/operations/claims.ts. */
export const OTHER_CALLS = `
-- Of one key. A denial reads all of them, for 2 us each, and Redis does nothing else meanwhile.
local MAX_HOLDS = 2000

-- How far into debt the units that came back are known, in capacities.
local KNOWN_DEBT = 2

local function rulesNow()
  return { rules = (withoutTaking(NOTHING)) }
end

function holdText(hold)
  return '{"id":' .. encode(hold.id) .. ',"expiresAfterMs":' .. text(hold.ttlMs)
    .. (hold.token and ',"fencingToken":"' .. hold.token .. '"' or '') .. '}'
end

-- The answer of a hold; of one that is still there, how long it still lasts.
local function heldAgain(answer)
  local hold = findHold('h:' .. answer.id)
  local expiresAfterMs = hold and hold.atMs - nowMs or answer.ttlMs
  local held = { id = answer.id, ttlMs = expiresAfterMs, token = answer.token }
  return { rules = answer.rules, hold = held, plan = answer.plan }
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
  local rules, isAdmitted = decideTogether(call.cost, { place = place })
  if not isAdmitted then return { rules = rules } end
  local token = leases(call.cost) and takeTokens(1) or nil
  local answer = { request = call.request, rules = rules, id = call.id, ttlMs = call.ttlMs, token = token }
  answer.plan = call.plan
  remember(answerKey, answer)
  remember(requestKey, answer)
  return heldAgain(answer)
end

-- Settled late or again, it is answered and changes nothing.
calls.settle = function()
  local id, known = 'h:' .. call.id, recall(answerKey)
  local hold = findHold(id)
  if not hold then
    -- Only what was cancelled is cancelled again, and it is not settled.
    local isOther = not known or (known.isCancelled or false) ~= not call.used
    if isOther then return { isMissing = true } end
    return call.used and known.isSettled and known or rulesNow()
  end
  removeHold(id)
  for index, book in ipairs(books) do
    local used = call.used and call.used[index] or 0
    if used < 0 then used = hold.units[book.name] or 0 end
    if used > 0 then book.state = book.rule.algorithm.debit(book.rule, book.state, nowMs, used) end
  end
  local answer = rulesNow()
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

-- Units that are free, also in a debt that is not too deep: by them one sees what a refund has returned.
local function freeUnits(book)
  local rule = book.rule
  local look = rule.algorithm.decide(rule, book.state, nowMs, 0, -KNOWN_DEBT * (rule.burst or rule.limit))
  return look.quotaRemaining or look.remaining
end

calls.refund = function()
  local earlier = repeated()
  if earlier then return earlier end
  local charged = call.isNamed and recall(KEYS[#KEYS - 1])
  if call.isNamed and not (charged and charged.charge) then return { isMissing = true } end
  local named, free = charged and charged.charge, {}
  for index, book in ipairs(books) do free[index] = freeUnits(book) end
  if charged then
    defineCharges()
    uncharge(charged)
  end
  for index, book in ipairs(books) do
    if call.cost[index] > 0 and not charged then
      book.state = book.rule.algorithm.credit(book.rule, book.state, nowMs, call.cost[index])
    end
    pool.isChanged = pool.isChanged or book.state ~= book.before
    local isNamed = call.cost[index] > 0 and not book.rule.isLeased and (not named or named[book.name])
    if isNamed and free[index] > 0 then book.refunded = freeUnits(book) - free[index] end
  end
  local answer = rulesNow()
  answer.request, answer.plan = call.request, call.plan
  remember(requestKey, answer)
  return answer
end

calls.peek = function()
  defineHolders()
  if not holding then readHolders() end
  local rules = withoutTaking(call.cost)
  readRest()
  local report = { outstanding = 0, holds = 0, leases = 0, queueLength = 0, reclaimed = numberIn('reclaimed') }
  local function add(field, count) report[field] = report[field] + count end
  for _, book in ipairs(books) do report.outstanding = math.max(report.outstanding, book.held.all) end
  for _, hold in ipairs(pool.live) do
    local isHold, isLease = false, false
    for _, book in ipairs(books) do
      local hasUnits = (hold.units[book.name] or 0) > 0 and not isRegional(hold.id)
      isLease = isLease or (hasUnits and book.rule.isLeased)
      isHold = isHold or (hasUnits and not book.rule.isLeased)
    end
    add('holds', isHold and 1 or 0)
    add('leases', isLease and 1 or 0)
  end
  -- The caller's own numbers are in its message.
  if holding then pool.holders[holding.holder] = holding end
  for _, record in pairs(pool.holders) do
    add('leases', record.leases)
    add('queueLength', record.queueLength)
  end
  local counts = {}
  for name, count in pairs(report) do counts[#counts + 1] = '"' .. name .. '":' .. text(count) end
  return { rules = rules, report = '{' .. table.concat(counts, ',') .. '}' }
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
  -- A reset says that no slots of before lost writes are in use, or that it does not matter.
  pool.blockedMs = 0
  set('blocked', nil)
  set('reclaimed', nil)
  set('reset', text(math.max(nowMs, numberIn('reset') + 1)))
  return rulesNow()
end
`;

/** Executes one call, from reading the pool to the answer as JSON. The script ends here. */
export const ANSWERING = `
local function answerText(answer, granted, next)
  local mark = call.seen and format('{"atMs":%d,"wholeMs":%d}', numberIn('now'), numberIn('marked'))
  local isPlain = call.op == 'limit' and answer.rules and not (answer.round or answer.plan or granted)
  if isPlain then return '{"rules":' .. answer.rules .. (mark and ',"mark":' .. mark or '') .. '}' end
  local parts = {}
  local function add(name, value)
    if value then parts[#parts + 1] = '"' .. name .. '":' .. value end
  end
  add('rules', answer.rules)
  add('plan', answer.plan and encode(answer.plan))
  add('missing', answer.isMissing and 'true')
  add('conflict', answer.conflict and '{"request":' .. encode(answer.conflict) .. '}')
  add('full', answer.full and '{"bound":"pool-holds","most":' .. text(answer.full) .. '}')
  add('hold', answer.hold and holdText(answer.hold))
  add('expiresAfterMs', answer.expiresAfterMs and text(answer.expiresAfterMs))
  add('deniedIn', answer.round and '{"round":' .. answer.round .. (answer.isEarlier and ',"isEarlier":true}' or '}'))
  add('granted', granted)
  add('mark', mark)
  add('next', next)
  add('report', answer.report)
  return '{' .. table.concat(parts, ',') .. '}'
end

local function answer()
  load()
  if call.op ~= 'limit' then defineCalls() end
  if call.seen and isOlder(call.seen) then
    defineHolds()
    defineHolders()
    coverLostWrites(call.seen)
  end
  local own, refused, granted, next = nil, nil, nil, nil
  if holding then
    defineHolders()
    own, refused = noteHolding()
  end
  local answer = calls[call.op](holding and charged(own, refused))
  if own then granted = grant(own, answer.isLeasing) end
  if refused then granted = refuse(refused, answer.isLeasing) end
  if holding then
    for _, book in ipairs(books) do next = next or not decide(book, 1).allowed end
    next = next and withoutTaking(ONES)
  end
  save()
  return answerText(answer, granted, next)
end

return answer()
`;
