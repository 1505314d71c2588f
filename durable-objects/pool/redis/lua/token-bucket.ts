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

-- A leading zero, which older scripts read and do not write: the noted terms are those of this state.
tokenBucket.read = function(stored, total)
  local zero, spent, windowMs, burst, atMs = string.match(stored, '^token%-bucket (0?)(%d+) (%d+) (%d+) (%d+)$')
  if not spent then return nil end
  return { spent = tonumber(spent), windowMs = tonumber(windowMs), burst = tonumber(burst), atMs = tonumber(atMs),
    total = total and tonumber(total), hasTerms = zero == '0' }
end

tokenBucket.write = function(state)
  return format('token-bucket 0%d %d %d %d', state.spent, state.windowMs, state.burst, state.atMs)
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

-- Parts in those of another window: rounded up.
local function inParts(parts, from, to)
  if from == to then return parts end
  local rest = math.fmod(parts, from)
  return (parts - rest) / from * to + scaledUp(rest, to, from)
end

-- All that was spent, in parts of this policy.
local function totalOf(rule, state)
  return inParts(state.total or state.spent, state.windowMs, rule.windowMs)
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

-- What was charged to a larger bucket is first of what this one could not hold when it shrank.
tokenBucket.uncharge = function(rule, state, nowMs, units, charge)
  local spent, beyond = spentAt(rule, state, nowMs), beyondAt(rule, state, nowMs)
  local isLarger = charge.capacity > rule.burst
  local all = spent + (isLarger and beyond or 0) - math.max(0, units * rule.windowMs - charge.returned)
  local left = math.min(spent, math.max(0, all))
  return bucketState(rule, left, stamp(state, nowMs), isLarger and math.max(0, all - left) or beyond)
end

-- The terms by which time returns units, from "atMs" on, and the parts that others had returned then since "sinceMs".
tokenBucket.termsIn = function(stored)
  local limit, windowMs, burst, sinceMs, atMs, parts = string.match(stored, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return limit and { limit = tonumber(limit), windowMs = tonumber(windowMs), burst = tonumber(burst),
    sinceMs = tonumber(sinceMs), atMs = tonumber(atMs), parts = tonumber(parts), stored = stored }
end

local function returnedBy(terms, limit, nowMs)
  return terms.parts + limit * math.max(0, nowMs - terms.atMs)
end

-- The rule's terms from now on. Before they are too many to be counted the parts begin again.
tokenBucket.termsAfter = function(rule, before, isKnown, nowMs)
  local parts = MAX_PARTS
  if before then
    -- Where an older script has decided meanwhile, the faster of both counts.
    local others = isKnown and 0 or math.ceil(rule.limit * before.windowMs / rule.windowMs)
    parts = inParts(returnedBy(before, max(before.limit, others), nowMs), before.windowMs, rule.windowMs)
  end
  local sinceMs = before and before.sinceMs
  if parts > MAX_PARTS / 2 then sinceMs, parts = nowMs, 0 end
  return tokenBucket.termsIn(format('%d %d %d %d %d %d', rule.limit, rule.windowMs, rule.burst, sinceMs, nowMs, parts))
end

-- The parts that time has returned since an instant under terms of before, at the rates of all terms since.
tokenBucket.returnedSince = function(rule, terms, before, atMs, nowMs)
  if before.sinceMs ~= terms.sinceMs then return math.huge end
  if before.atMs == terms.atMs then
    return inParts(terms.limit * math.max(0, nowMs - atMs), terms.windowMs, rule.windowMs)
  end
  local parts = returnedBy(before, before.limit, atMs)
  local had = inParts(parts, before.windowMs, rule.windowMs)
  if inParts(had, rule.windowMs, before.windowMs) > parts then had = had - 1 end
  return math.max(0, inParts(returnedBy(terms, terms.limit, nowMs), terms.windowMs, rule.windowMs) - had)
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
