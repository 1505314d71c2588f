/** Answers that are given again when a call is repeated, and the end of a call: everything is written, or nothing. */
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
  if #arguments == 0 then return end
  if #arguments <= MAX_ARGUMENTS then return redis.call(command, key, unpack(arguments)) end
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

local function save()
  if not pool.isChanged and pool.due < MAX_DUE then return end
  local wholeMs = lastExpiryMs(nil)
  for _, book in ipairs(books) do wholeMs = max(wholeMs, wholeAtMs(book, book.state)) end
  writeAnswers(wholeMs)
  local sets, deletes, keys = { 'now', text(nowMs) }, {}, { MAIN }
  if not pool.fields.since then note('since', sets[2]) end
  if pool.areHoldersChanged then note('holders', encode(pool.holderTexts)) end
  for field, value in pairs(pool.noted) do put(sets, deletes, field, value) end
  if next(pool.changed) then writeHolds(sets, deletes) end
  if pool.live[1] then keys[2] = HOLDS end
  for _, book in ipairs(books) do
    local rule, state = book.rule, book.state
    if state ~= book.before then
      put(sets, deletes, 's:' .. book.name, state and rule.algorithm.write(state))
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

/** Carries out one call, from reading the pool to the answer as JSON. The script ends here. */
export const ANSWERING = `
local function inWords(answer, granted, next)
  if call.op == 'limit' and answer.rules and not granted then return '{"rules":' .. answer.rules .. '}' end
  local parts = {}
  local function add(name, value)
    if value then parts[#parts + 1] = '"' .. name .. '":' .. value end
  end
  add('rules', answer.rules)
  add('missing', answer.isMissing and 'true')
  add('conflict', answer.conflict and '{"request":' .. encode(answer.conflict) .. '}')
  add('full', answer.full and '{"bound":"pool-holds","most":' .. text(answer.full) .. '}')
  add('hold', answer.hold and holdText(answer.hold))
  add('expiresAfterMs', answer.expiresAfterMs and text(answer.expiresAfterMs))
  add('granted', granted)
  add('next', next)
  add('report', answer.report)
  return '{' .. table.concat(parts, ',') .. '}'
end

local function answer()
  load()
  if call.op ~= 'limit' then defineCalls() end
  local own, refused, granted, next = nil, nil, nil, nil
  if holding then
    defineHolders()
    own, refused = noteHolding()
  end
  local said = calls[call.op](holding and charged(own, refused))
  if own then granted = grant(own, said.isLeasing) end
  if refused then granted = refuse(refused, said.isLeasing) end
  if holding then
    for _, book in ipairs(books) do next = next or not decide(book, 1).allowed end
    next = next and withoutTaking(ONES)
  end
  save()
  return inWords(said, granted, next)
end

return answer()
`;

/** durable-objects/keys/idempotency.ts in Lua: what a call took, remembered beside its answer, and given back by name. */
export const CHARGES = `
-- The terms of a rule. Under others nobody knows which units of a charge time has given back.
local function termsOf(rule)
  return (rule.burst and 'bucket ' or 'log ') .. text(rule.capacity) .. ' ' .. text(rule.limit) .. '/'
    .. text(rule.windowMs or 0)
end

-- What a call takes of each rule, as durable-objects/keys/idempotency.ts remembers it.
function chargeOf(costs)
  local charge = {}
  for index, book in ipairs(books) do
    if costs[index] > 0 then charge[book.name] = text(costs[index]) .. ' ' .. termsOf(book.rule) end
  end
  return charge
end

-- How many units the charge took of a rule, on the terms that the rule still has.
local function takenOf(charge, book)
  local units, terms = string.match(charge[book.name] or '', '^(%d+) (.*)$')
  return terms == termsOf(book.rule) and tonumber(units) or 0
end

-- Nothing is left of a charge that came back whole: then its answer goes too, and its call is decided anew.
function uncharge(charged)
  local taken, whole = 0, 0
  for index, book in ipairs(books) do
    local units = math.min(call.cost[index], takenOf(charged.charge, book))
    if charged.charge[book.name] and units == takenOf(charged.charge, book) and units > 0 then whole = whole + 1 end
    if units > 0 then
      book.state = book.rule.algorithm.uncharge(book.rule, book.state, nowMs, units, tonumber(charged.atMs))
    end
  end
  for _ in pairs(charged.charge) do taken = taken + 1 end
  charged.charge = nil
  remember(KEYS[#KEYS - 1], whole < taken and charged, true)
end
`;
