/**
 * The pool as one call sees it: read at the beginning, changed in memory, written at the end if anything changed.
 *
 * Fields of the hash: `now` the latest instant of a change; `since` that of the first; `s:<rule>` a rule's state;
 * `o:<rule>` its units outstanding, all of them and those that holders (regions) have; `u:<hold>` a hold's units by rule;
 * `holders`; `fence` the highest fencing token that was given out; `reclaimed` leases that expired; `blocked` no leases are given
 * until then; `lost` when it was last seen that writes were lost; `reset` the last reset; `answers` when the last answer is
 * forgotten; `marked` the latest instant in a mark.
 */
export const POOL = `
local call, sizing = cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
local MAIN, HOLDS = KEYS[1], KEYS[2]
-- So many holds are looked at in every call; more only where an exact wait needs them.
local CHUNK = 200
local FIELDS = { 'now', 'since', 'holders', 'fence', 'reclaimed', 'blocked', 'lost', 'reset', 'answers',
  'marked' }

local pool = { before = {}, fields = {}, held = {}, changed = {}, isChanged = false, moves = 0 }
local books, nowMs, clockMs = {}, 0, 0

local function isRegional(id) return string.sub(id, 1, 2) == 'r:' end

local function heldFrom(stored)
  local all, regional = string.match(stored or '0 0', '^(%d+) (%d+)$')
  return { all = tonumber(all), regional = tonumber(regional) }
end

-- Units outstanding of a rule, also one that this policy does not have (any more).
local function heldOf(name)
  if not pool.held[name] then
    pool.held[name] = heldFrom(redis.call('HMGET', MAIN, 'o:' .. name)[1] or nil)
  end
  return pool.held[name]
end

local function numbersOf(units)
  local numbers = {}
  for name, value in pairs(units) do numbers[name] = tonumber(value) end
  return numbers
end

-- cjson writes 14 digits.
local function exactly(units)
  local exact = {}
  for name, value in pairs(units) do exact[name] = value < 1e14 and value or text(value) end
  return exact
end

-- Holds by rank, soonest to expire first, as { id, atMs, units by rule }.
local function readHolds(from, to)
  local found = redis.call('ZRANGE', HOLDS, text(from), text(to), 'WITHSCORES')
  local holds, fields = {}, {}
  for index = 1, #found, 2 do
    holds[#holds + 1] = { id = found[index], atMs = tonumber(found[index + 1]) }
    fields[#fields + 1] = 'u:' .. found[index]
  end
  if #holds == 0 then return holds end
  local units = redis.call('HMGET', MAIN, unpack(fields))
  for index, hold in ipairs(holds) do
    hold.units = units[index] and numbersOf(cjson.decode(units[index])) or {}
  end
  return holds
end

local function readRules()
  local fields = {}
  for index, name in ipairs(FIELDS) do fields[index] = name end
  for _, rule in ipairs(call.rules) do
    fields[#fields + 1] = 's:' .. rule.name
    fields[#fields + 1] = 'o:' .. rule.name
  end
  local values = redis.call('HMGET', MAIN, unpack(fields))
  for index, field in ipairs(fields) do
    pool.before[field] = values[index] or nil
    pool.fields[field] = pool.before[field]
  end
  for index, rule in ipairs(call.rules) do
    rule.algorithm = ALGORITHMS[rule.algorithm]
    rule.capacity = rule.burst or rule.limit
    rule.minIntervalMs = rule.minIntervalMs or 0
    rule.isLeased = rule.algorithm.isLeased
    rule.logKey = KEYS[2 + index]
    local stored = pool.fields['s:' .. rule.name]
    pool.held[rule.name] = heldFrom(pool.fields['o:' .. rule.name])
    books[index] = { rule = rule, name = rule.name, held = pool.held[rule.name],
      state = stored and rule.algorithm.read(stored, rule) or nil }
    books[index].before = books[index].state
  end
end

local function numberIn(field)
  return tonumber(pool.fields[field] or '0')
end

local function set(field, value)
  pool.fields[field], pool.isChanged = value, true
end

-- Counts a hold's units as outstanding, or no longer.
local function shift(hold, sign)
  pool.moves = pool.moves + 1
  for name, units in pairs(hold.units) do
    local held = heldOf(name)
    held.all = math.max(0, held.all + sign * units)
    if isRegional(hold.id) then held.regional = math.max(0, held.regional + sign * units) end
    held.isChanged = true
  end
end

-- Debits every hold that has expired, each at its own instant; what was leased is free.
local function expire(hold)
  shift(hold, -1)
  pool.changed[hold.id] = false
  pool.due = pool.due + 1
  local wasLeased = false
  for _, book in ipairs(books) do
    local units = hold.units[book.name] or 0
    if units > 0 and book.rule.isLeased then wasLeased = true end
    if units > 0 then book.state = book.rule.algorithm.debit(book.rule, book.state, hold.atMs, units) end
  end
  if wasLeased and not isRegional(hold.id) then pool.fields.reclaimed = text(numberIn('reclaimed') + 1) end
end

local function load()
  local time = redis.call('TIME')
  clockMs = time[1] * 1000 + math.floor(time[2] / 1000)
  readRules()
  nowMs = math.max(clockMs, numberIn('now'))
  pool.live, pool.due = {}, 0
  local from = 0
  repeat
    local holds = readHolds(from, from + CHUNK - 1)
    for _, hold in ipairs(holds) do
      if hold.atMs <= nowMs then expire(hold) else pool.live[#pool.live + 1] = hold end
    end
    from = from + CHUNK
    pool.hasMore = #holds == CHUNK
  until not pool.hasMore or #pool.live > 0
end
`;
