/** Answers that are given again to whoever repeats a call, and the end of a call: everything is written, or nothing. */
export const ANSWERS = `
local DAY_MS = 86400000
-- Keys live this much longer than anything in them matters.
local SPARE_MS = 60000
-- Holds that expired are written off with the next change, or when there are so many of them.
local MOST_DUE = 32
-- What Lua can pass to a command at once is bounded.
local MOST_ARGUMENTS = 1000

-- What was remembered, unless the pool has been reset since.
local function recall(key)
  local stored = key and redis.call('GET', key)
  if not stored then return nil end
  local answer = cjson.decode(stored)
  if answer.reset ~= (pool.fields.reset or '0') then return nil end
  return answer
end

local function remember(key, answer)
  if not key then return end
  pool.answers[#pool.answers + 1] = { key = key, answer = answer }
  pool.isChanged = true
end

-- An answer stands for a day, and at least until the pool is as untouched.
local function writeAnswers(wholeMs)
  if #pool.answers == 0 then return end
  local untilMs = math.max(nowMs + DAY_MS, wholeMs)
  set('answers', text(math.max(numberIn('answers'), untilMs)))
  for _, each in ipairs(pool.answers) do
    each.answer.reset = pool.fields.reset or '0'
    redis.call('SET', each.key, cjson.encode(each.answer), 'PX', text(untilMs - clockMs))
  end
end

local function send(command, key, arguments)
  for from = 1, #arguments, MOST_ARGUMENTS do
    redis.call(command, key, unpack(arguments, from, math.min(from + MOST_ARGUMENTS - 1, #arguments)))
  end
end

local function changes()
  local sets, deletes = {}, {}
  local function write(field, value)
    if value then
      sets[#sets + 1], sets[#sets + 2] = field, value
    else
      deletes[#deletes + 1] = field
    end
  end
  return write, sets, deletes
end

local function writeHolds(write)
  local placed, removed = {}, {}
  for id, hold in pairs(pool.changed) do
    if hold then
      placed[#placed + 1], placed[#placed + 2] = text(hold.atMs), id
    else
      removed[#removed + 1] = id
    end
    write('u:' .. id, hold and cjson.encode(exactly(hold.units)))
  end
  for name, held in pairs(pool.held) do
    if held.isChanged then write('o:' .. name, held.all > 0 and text(held.all) .. ' ' .. text(held.regional)) end
  end
  send('ZADD', HOLDS, placed)
  send('ZREM', HOLDS, removed)
end

-- The instant from which the keys may be forgotten.
local function endsMs(wholeMs)
  local untilMs = math.max(wholeMs, pool.blockedMs, numberIn('marked'))
  for _, record in pairs(pool.holders) do untilMs = math.max(untilMs, record.rememberMs) end
  -- Fencing tokens may be ahead of the clock, and go on rising afterwards.
  untilMs = math.max(untilMs, math.ceil(numberIn('fence') / 1000))
  if pool.fields.reset then untilMs = math.max(untilMs, nowMs + DAY_MS, numberIn('answers')) end
  return untilMs
end

local function save()
  if not pool.isChanged and pool.due < MOST_DUE then return end
  local wholeMs = lastExpiryMs(nil)
  for _, book in ipairs(books) do wholeMs = math.max(wholeMs, wholeAtMs(book, book.state)) end
  writeAnswers(wholeMs)
  set('now', text(nowMs))
  set('since', pool.fields.since or text(nowMs))
  if pool.areHoldersChanged then set('holders', next(pool.holders) and cjson.encode(pool.holders)) end
  local write, sets, deletes = changes()
  for _, field in ipairs(FIELDS) do
    if pool.fields[field] ~= pool.before[field] then write(field, pool.fields[field]) end
  end
  writeHolds(write)
  local keys = { MAIN, HOLDS }
  for _, book in ipairs(books) do
    local rule, state = book.rule, book.state
    if state ~= book.before then
      write('s:' .. book.name, state and rule.algorithm.write(state))
      if rule.algorithm.save then rule.algorithm.save(rule, state) end
    end
    if rule.algorithm.save then keys[#keys + 1] = rule.logKey end
  end
  send('HSET', MAIN, sets)
  send('HDEL', MAIN, deletes)
  for _, key in ipairs(keys) do redis.call('PEXPIRE', key, text(endsMs(wholeMs) - clockMs + SPARE_MS)) end
end
`;
