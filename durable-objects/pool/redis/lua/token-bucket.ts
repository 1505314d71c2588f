/** core/algorithms/token-bucket.ts in Lua, exact to the part of a token: both calculate with doubles. */
export const TOKEN_BUCKET = `
local MAX_PARTS = 9007199254740992

-- ceil(a * b / divisor) for a < divisor, exactly, also when the product is over 2^53: digit by digit of b.
local function scaledUp(a, b, divisor)
  if a * b < MAX_PARTS then
    local rest = math.fmod(a * b, divisor)
    return (a * b - rest) / divisor + (rest > 0 and 1 or 0)
  end
  local base = 2
  while base * 2 * divisor <= MAX_PARTS / 2 do base = base * 2 end
  local place = 1
  while place * base <= b do place = place * base end
  local quotient, rest = 0, 0
  while place >= 1 do
    local below = math.fmod(b, place)
    local sum = rest * base + a * ((b - below) / place)
    rest = math.fmod(sum, divisor)
    quotient = quotient * base + (sum - rest) / divisor
    b, place = below, place / base
  end
  return quotient + (rest > 0 and 1 or 0)
end

local tokenBucket = {}

tokenBucket.read = function(stored, total)
  local spent, windowMs, burst, atMs = string.match(stored, '^token%-bucket (%d+) (%d+) (%d+) (%d+)$')
  if not spent then return nil end
  return { spent = tonumber(spent), windowMs = tonumber(windowMs), burst = tonumber(burst), atMs = tonumber(atMs),
    total = total and tonumber(total) }
end

tokenBucket.write = function(state)
  return format('token-bucket %d %d %d %d', state.spent, state.windowMs, state.burst, state.atMs)
end

tokenBucket.more = function(state)
  return state.total and text(state.total)
end

tokenBucket.used = function(state)
  return math.ceil((state.total or state.spent) / state.windowMs)
end

-- "beyond": what would be spent in addition if the bucket had never shrunk.
local function bucketState(rule, spent, atMs, beyond)
  if spent <= 0 and beyond <= 0 then return nil end
  spent = math.max(0, spent)
  local total = beyond > 0 and math.min(spent + beyond, MAX_PARTS) or nil
  return { spent = spent, windowMs = rule.windowMs, burst = rule.burst, atMs = atMs, total = total }
end

-- All that was spent, in parts of this policy: rounded up.
local function totalOf(rule, state)
  local parts = state.total or state.spent
  if state.windowMs == rule.windowMs then return parts end
  local rest = math.fmod(parts, state.windowMs)
  local units = (parts - rest) / state.windowMs
  return units * rule.windowMs + scaledUp(rest, rule.windowMs, state.windowMs)
end

-- The same consumption under another policy is at most the whole new bucket.
local function spentUnder(rule, state)
  if state.windowMs == rule.windowMs and state.burst == rule.burst then return state.spent end
  return math.min(totalOf(rule, state), rule.burst * rule.windowMs)
end

local function refilled(rule, state, nowMs)
  return rule.limit * math.max(0, nowMs - state.atMs)
end

local function spentAt(rule, state, nowMs)
  if not state then return 0 end
  return math.max(0, spentUnder(rule, state) - refilled(rule, state, nowMs))
end

tokenBucket.counted = function(rule, state, nowMs)
  return math.ceil(spentAt(rule, state, nowMs) / rule.windowMs)
end

local function beyondAt(rule, state, nowMs)
  if not state or (not state.total and state.windowMs == rule.windowMs and state.burst == rule.burst) then return 0 end
  return math.max(0, totalOf(rule, state) - refilled(rule, state, nowMs) - spentAt(rule, state, nowMs))
end

local function stamp(state, nowMs)
  return state and math.max(state.atMs, nowMs) or nowMs
end

tokenBucket.decide = function(rule, state, nowMs, cost, outstanding)
  local spent = spentAt(rule, state, nowMs)
  local unheldParts = (rule.burst - outstanding) * rule.windowMs
  local costParts = cost * rule.windowMs
  local room = unheldParts - costParts
  if cost == 0 or spent <= room then
    return {
      allowed = true,
      state = bucketState(rule, spent + costParts, stamp(state, nowMs), beyondAt(rule, state, nowMs)),
      remaining = math.max(0, math.floor((room - spent) / rule.windowMs)),
      resetAfterMs = math.ceil((spent + costParts) / rule.limit) }
  end
  return {
    allowed = false,
    reason = cost > rule.burst and 'cost-over-limit' or 'quota',
    retryAfterMs = room >= 0 and math.ceil((spent - room) / rule.limit) or nil,
    remaining = math.max(0, math.floor((unheldParts - spent) / rule.windowMs)),
    resetAfterMs = math.ceil(spent / rule.limit) }
end

tokenBucket.noteHold = function(rule, state)
  return state
end

tokenBucket.debit = function(rule, state, nowMs, units)
  local spent = spentAt(rule, state, nowMs) + units * rule.windowMs
  return bucketState(rule, math.min(spent, MAX_PARTS), stamp(state, nowMs), beyondAt(rule, state, nowMs))
end

tokenBucket.credit = function(rule, state, nowMs, units)
  local spent = spentAt(rule, state, nowMs) - units * rule.windowMs
  return bucketState(rule, spent, stamp(state, nowMs), beyondAt(rule, state, nowMs))
end

tokenBucket.uncharge = function(rule, state, nowMs, units, atMs)
  local back = math.max(0, units * rule.windowMs - rule.limit * math.max(0, nowMs - atMs))
  local spent, beyond = spentAt(rule, state, nowMs), beyondAt(rule, state, nowMs)
  local left = math.max(0, spent + beyond - back)
  spent = math.min(spent, left)
  return bucketState(rule, spent, stamp(state, nowMs), left - spent)
end

-- Nothing is left, whatever there was.
tokenBucket.empty = function(rule, state, nowMs)
  local spent = math.max(spentAt(rule, state, nowMs), rule.burst * rule.windowMs)
  return bucketState(rule, spent, stamp(state, nowMs), beyondAt(rule, state, nowMs))
end

-- What was spent beyond a bucket that shrank counts when it grows again.
tokenBucket.outlastsMs = function(rule, state)
  return state.atMs + math.ceil(totalOf(rule, state) / rule.limit)
end

tokenBucket.wholeAtMs = function(rule, state)
  return state.atMs + math.ceil(spentAt(rule, state, state.atMs) / rule.limit)
end

-- "debit" hold by hold, then "wholeAtMs", without a state for each: all calls compute it while units are held.
-- Units of holds that are not known here are used at an instant after them.
tokenBucket.wholeAfterMs = function(rule, state, book, afterMs, holds)
  local spent, atMs = 0, state and state.atMs or -math.huge
  if state then spent = spentAt(rule, state, atMs) end
  local name, limit, windowMs, unseen, count = book.name, rule.limit, rule.windowMs, book.held.all, #holds
  -- Plain comparisons: with 100 holds, functions for them were most of what a holder's message took.
  for index = 1, count + 1 do
    local hold = holds[index]
    local units, thenMs = unseen, afterMs
    if hold then units, thenMs = hold.units[name] or 0, hold.atMs end
    if units > 0 then
      if thenMs > atMs then
        spent, atMs = spent - limit * (thenMs - atMs), thenMs
        if spent < 0 then spent = 0 end
      end
      spent, unseen = spent + units * windowMs, unseen - units
      if spent > MAX_PARTS then spent = MAX_PARTS end
    end
  end
  return atMs + math.ceil(spent / limit)
end
return tokenBucket
`;
