/**
 * core/algorithms/log/sliding-log.ts in Lua; what it asks of its log is in unit-log.ts.
 */
export const SLIDING_LOG = `
local MAX_COUNTED = 4294967295
local slidingLog = {}

slidingLog.read = function(stored, rule)
  local total, closed, gone, openMs, lastMs = string.match(stored, '^sliding%-log (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not total then return nil end
  return { total = tonumber(total), closed = tonumber(closed), gone = tonumber(gone), openMs = tonumber(openMs),
    lastMs = tonumber(lastMs), key = rule.logKey, holes = readHoles(rule, stored) }
end

slidingLog.write = function(log)
  return format('sliding-log %d %d %d %d %d', log.total, log.closed, log.gone, log.openMs, log.lastMs)
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

-- The oldest units go, which are the first to leave anyway.
slidingLog.credit = function(rule, state, nowMs, units)
  return state and withoutOldest(state, rule.windowMs, nowMs, units)
end

-- Units of a charge go where they were logged.
slidingLog.uncharge = function(rule, state, nowMs, units, atMs)
  return state and withoutUnitsAt(state, rule.windowMs, nowMs, units, atMs)
end

-- All units count, and from now on.
slidingLog.empty = function(rule, state, nowMs)
  return logged(rule, state, nowMs, rule.limit, rule.limit, state and state.lastMs or 0)
end

-- Runs that have left go from the set, those that were closed join it.
slidingLog.save = function(rule, log)
  writeHoles(rule, log and slidingLog.write(log), log and log.holes or NO_HOLES)
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
