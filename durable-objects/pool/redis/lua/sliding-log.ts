/**
 * core/algorithms/log/sliding-log.ts and unit-log.ts in Lua.
 *
 * Closed runs are members of a sorted set, "<ms>:<all units up to and with this run>", with the millisecond
 * as score. The open run, which more units may join, is part of the state. A decision also tries states that
 * are never written ("how much is left once this hold has expired?"). So a state is a value with a list of
 * the runs that it closed, the latest first, and only the final state is written.
 *
 * Holes are a list `{ from, to, from, to }` in a field of their own, `g:<rule>`, since older scripts could
 * not read a state with them. If such a script has changed the state since, they are dropped: refunded units
 * count again until they leave the window, and nothing is admitted twice.
 */
export const SLIDING_LOG = `
local MAX_HOLES = 64
local NO_HOLES = {}

local function unitsInHoles(holes, from)
  local units = 0
  for at = 1, #holes, 2 do units = units + math.max(0, holes[at + 1] - math.max(holes[at], from)) end
  return units
end

local function after(holes, from, units)
  local to = from + units
  for at = 1, #holes, 2 do
    local start = math.max(holes[at], from)
    if start >= to then break end
    to = to + math.max(0, holes[at + 1] - start)
  end
  return to
end

local function withHole(holes, from, to)
  local list, behind = {}, {}
  for at = 1, #holes, 2 do
    local first, last = holes[at], holes[at + 1]
    if last < from then
      list[#list + 1], list[#list + 2] = first, last
    elseif first > to then
      behind[#behind + 1], behind[#behind + 2] = first, last
    else
      from, to = math.min(from, first), math.max(to, last)
    end
  end
  list[#list + 1], list[#list + 2] = from, to
  for _, edge in ipairs(behind) do list[#list + 1] = edge end
  return list
end

local function holesFrom(holes, from)
  local at = 1
  while at <= #holes and holes[at + 1] <= from do at = at + 2 end
  if at == 1 then return holes end
  local list = {}
  for index = at, #holes do list[#list + 1] = holes[index] end
  return list
end

local function holesIn(list)
  if not list then return NO_HOLES end
  local holes = {}
  for number in string.gmatch(list, '%d+') do holes[#holes + 1] = tonumber(number) end
  return holes
end

local NEVER = -math.huge
local slidingLog = {}

local function logWith(log, changes)
  local copy = {}
  for name, value in pairs(log) do copy[name] = value end
  for name, value in pairs(changes) do copy[name] = value end
  return copy
end

-- No key: runs that may be stored there belong to a log that is over.
local function beginLog(nowMs)
  return { total = 0, closed = 0, gone = 0, openMs = nowMs, lastMs = 0, holes = NO_HOLES }
end

local function unitsOf(member)
  return tonumber(string.match(member, ':(%d+)$'))
end

-- All units logged in closed runs up to an instant; 0 when no such run is left.
local function unitsUntil(log, atMs)
  local run = log.runs
  while run do
    if run.ms <= atMs then return run.units end
    run = run.before
  end
  if not log.key then return 0 end
  local last = redis.call('ZREVRANGEBYSCORE', log.key, text(atMs), '-inf', 'LIMIT', '0', '1')
  return last[1] and unitsOf(last[1]) or 0
end

-- When the earliest closed run was that comes to so many units; none does: nil.
local function closedRunMs(log, units)
  local foundMs, run = nil, log.runs
  while run and run.units >= units do
    foundMs, run = run.ms, run.before
  end
  if run or not log.key then return foundMs end
  local low, high = 0, redis.call('ZCARD', log.key)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = redis.call('ZRANGE', log.key, text(middle), text(middle))[1]
    if unitsOf(member) >= units then
      foundMs, high = tonumber(string.match(member, '^(%d+):')), middle
    else
      low = middle + 1
    end
  end
  return foundMs
end

local function goneAt(log, windowMs, nowMs)
  if log.openMs <= nowMs - windowMs then return log.total end
  return math.min(log.total, math.max(log.gone, unitsUntil(log, nowMs - windowMs)))
end

local function countedAt(log, windowMs, nowMs)
  if not log then return 0 end
  local gone = goneAt(log, windowMs, nowMs)
  return log.total - gone - unitsInHoles(log.holes, gone)
end

slidingLog.counted = function(rule, log, nowMs)
  return countedAt(log, rule.windowMs, nowMs)
end

-- When so many of the units that count will have left.
local function leavesAtMs(log, windowMs, nowMs, units)
  return windowMs + (closedRunMs(log, after(log.holes, goneAt(log, windowMs, nowMs), units)) or log.openMs)
end

-- When the last unit that counts was logged; none does: long ago.
local function lastCountedMs(log)
  local holes = log.holes
  if holes[#holes] ~= log.total then return log.total > log.gone and log.openMs or NEVER end
  local last = holes[#holes - 1]
  return last > log.gone and (closedRunMs(log, last) or log.openMs) or NEVER
end

local MAX_COUNTED = 4294967295

slidingLog.read = function(stored, holes, rule)
  local total, closed, gone, openMs, lastMs = string.match(stored, '^sliding%-log (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not total then return nil end
  return { total = tonumber(total), closed = tonumber(closed), gone = tonumber(gone), openMs = tonumber(openMs),
    lastMs = tonumber(lastMs), key = rule.logKey, holes = holesIn(holes) }
end

slidingLog.write = function(log)
  return format('sliding-log %d %d %d %d %d', log.total, log.closed, log.gone, log.openMs, log.lastMs)
end

slidingLog.used = function(log)
  return log.total - log.gone - unitsInHoles(log.holes, log.gone)
end

slidingLog.more = function(log)
  if #log.holes == 0 then return nil end
  local numbers = {}
  for at, number in ipairs(log.holes) do numbers[at] = text(number) end
  return table.concat(numbers, ' ')
end

slidingLog.wholeAtMs = function(rule, log)
  local emptyMs = lastCountedMs(log) + rule.windowMs
  if rule.minIntervalMs == 0 then return emptyMs end
  return math.max(emptyMs, log.lastMs + rule.minIntervalMs)
end

-- The log with more units at an instant, at most the newest "most" of all.
local function logged(rule, state, nowMs, units, most, lastMs)
  local isOver = state and slidingLog.wholeAtMs(rule, state) <= nowMs and state.openMs < nowMs
  local log = (isOver or not state) and beginLog(nowMs) or state
  local gone = goneAt(log, rule.windowMs, nowMs)
  local added = logWith(log, { forgetMs = nowMs - rule.windowMs, openMs = math.max(log.openMs, nowMs) })
  if added.openMs > log.openMs and log.total > log.closed then
    added.runs = { ms = log.openMs, units = log.total, before = log.runs }
    added.closed = log.total
  end
  added.total = log.total + math.min(units, MAX_COUNTED - (log.total - gone))
  local counted = added.total - gone - unitsInHoles(log.holes, gone)
  added.gone = after(log.holes, gone, math.max(0, counted - most))
  added.holes = holesFrom(log.holes, added.gone)
  added.lastMs = (isOver or not state) and lastMs or math.max(state.lastMs, lastMs)
  return added
end

local function intervalMs(rule, state, nowMs)
  if not state or rule.minIntervalMs == 0 then return nowMs end
  return state.lastMs + rule.minIntervalMs
end

local function wholeAfterMs(rule, state, nowMs)
  return state and math.max(0, slidingLog.wholeAtMs(rule, state) - nowMs) or 0
end

local function denyLog(rule, state, nowMs, cost, outstanding)
  local free = rule.limit - countedAt(state, rule.windowMs, nowMs) - outstanding
  local quotaMs = nowMs
  if state and cost > free then quotaMs = leavesAtMs(state, rule.windowMs, nowMs, cost - free) end
  local soonestMs = intervalMs(rule, state, nowMs)
  return {
    allowed = false,
    reason = cost > rule.limit and 'cost-over-limit' or soonestMs > quotaMs and 'min-interval' or 'quota',
    retryAfterMs = cost + outstanding <= rule.limit and math.max(quotaMs, soonestMs) - nowMs or nil,
    remaining = soonestMs > nowMs and 0 or math.max(0, free),
    quotaRemaining = rule.minIntervalMs > 0 and math.max(0, free) or nil,
    resetAfterMs = wholeAfterMs(rule, state, nowMs) }
end

slidingLog.decide = function(rule, state, nowMs, cost, outstanding)
  local free = rule.limit - countedAt(state, rule.windowMs, nowMs) - outstanding
  local isTooSoon = intervalMs(rule, state, nowMs) > nowMs
  if cost > 0 and (cost > free or isTooSoon) then
    local denied = denyLog(rule, state, nowMs, cost, outstanding)
    if not rule.countDenied or cost > rule.limit then return denied end
    local after = logged(rule, state, nowMs, cost, rule.limit, nowMs)
    denied.counted = denyLog(rule, after, nowMs, cost, outstanding)
    denied.counted.state, denied.counted.reason = after, denied.reason
    return denied
  end
  local after = nil
  if cost > 0 then
    after = logged(rule, state, nowMs, cost, MAX_COUNTED, nowMs)
  elseif state and slidingLog.wholeAtMs(rule, state) > nowMs then
    after = state
  end
  local isSpaced = isTooSoon or (cost > 0 and rule.minIntervalMs > 0)
  return {
    allowed = true,
    state = after,
    remaining = isSpaced and 0 or math.max(0, free - cost),
    quotaRemaining = rule.minIntervalMs > 0 and math.max(0, free - cost) or nil,
    resetAfterMs = wholeAfterMs(rule, after, nowMs) }
end

slidingLog.noteHold = function(rule, state, nowMs)
  if rule.minIntervalMs == 0 then return state end
  local log = state or beginLog(nowMs)
  return logWith(log, { lastMs = math.max(nowMs, log.lastMs) })
end

slidingLog.debit = function(rule, state, nowMs, units)
  if units == 0 then return state end
  return logged(rule, state, nowMs, units, MAX_COUNTED, state and state.lastMs or 0)
end

-- It is unknown which units were given back: the oldest go, which are the first to leave anyway.
slidingLog.credit = function(rule, log, nowMs, units)
  if not log then return nil end
  local most = math.min(units, countedAt(log, rule.windowMs, nowMs))
  return logWith(log, { gone = after(log.holes, goneAt(log, rule.windowMs, nowMs), most) })
end

-- Units of a charge go where they were logged.
slidingLog.uncharge = function(rule, log, nowMs, units, charge)
  if not log then return nil end
  local atMs = charge.atMs
  local gone, isOpen = goneAt(log, rule.windowMs, nowMs), atMs == log.openMs
  local from = math.max(gone, isOpen and log.closed or unitsUntil(log, atMs - 1))
  local to = isOpen and log.total or unitsUntil(log, atMs)
  local counted = to - from - (unitsInHoles(log.holes, from) - unitsInHoles(log.holes, to))
  local given = math.min(units, counted)
  if given <= 0 then return log end
  local live = holesFrom(log.holes, gone)
  local holes = withHole(live, after(live, from, counted - given), to)
  if #holes > 2 * MAX_HOLES then return slidingLog.credit(rule, log, nowMs, given) end
  return logWith(log, { holes = holes })
end

-- All units count, and from now on.
slidingLog.empty = function(rule, state, nowMs)
  return logged(rule, state, nowMs, rule.limit, rule.limit, state and state.lastMs or 0)
end

-- Runs that have left go from the set, those that were closed join it.
slidingLog.save = function(rule, log)
  if not log or not log.key then redis.call('DEL', rule.logKey) end
  if not log then return end
  if log.forgetMs and log.key then redis.call('ZREMRANGEBYSCORE', log.key, '-inf', text(log.forgetMs)) end
  local run = log.runs
  while run do
    if run.ms > log.forgetMs then
      redis.call('ZADD', rule.logKey, text(run.ms), text(run.ms) .. ':' .. text(run.units))
    end
    run = run.before
  end
end

-- The last hold's units are the last to leave.
slidingLog.wholeAfterMs = function(rule, state, _, lastMs)
  local emptyMs = max(lastMs, state and state.openMs or 0) + rule.windowMs
  if rule.minIntervalMs == 0 then return emptyMs end
  return max(emptyMs, (state and state.lastMs or 0) + rule.minIntervalMs)
end

return slidingLog
`;
