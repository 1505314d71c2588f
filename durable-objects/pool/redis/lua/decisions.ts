/**
 * core/accounts/account.ts in Lua: what each rule says of a cost beside the units outstanding, and what all
 * rules say together.
 */
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

local function words(book, decision, isAllowed)
  local retryAfterMs = isAllowed and 0 or decision.retryAfterMs
  book.quoted = book.quoted or encode(book.name)
  return '{"name":' .. book.quoted
    .. format(',"success":%s,"limit":%d,"remaining":%d', tostring(isAllowed), book.rule.capacity, decision.remaining)
    .. (decision.quotaRemaining and ',"quotaRemaining":' .. text(decision.quotaRemaining) or '')
    .. ',"resetAfterMs":' .. text(decision.resetAfterMs)
    .. ',"retryAfterMs":' .. (retryAfterMs and text(retryAfterMs) or 'null')
    .. ',"reason":"' .. (isAllowed and 'ok' or decision.reason) .. '"}'
end

local function listed(parts) return '[' .. table.concat(parts, ',') .. ']' end

-- What a rule would say, with the figures as they stand while nothing is taken.
local function lookAt(book, cost)
  local decision = decide(book, cost)
  if decision.allowed and cost > 0 then decision = decide(book, 0) end
  return words(book, decision, decision.allowed), decision.allowed
end

-- What all rules would say, and whether that is yes.
local function withoutTaking(costs)
  local rules, isAllowed = {}, true
  for index, book in ipairs(books) do
    local said, says = lookAt(book, costs[index] or 0)
    rules[index], isAllowed = said, isAllowed and says
  end
  return listed(rules), isAllowed
end

-- A denial; those rules that count what they denied do, unless it could never have passed.
local function denied(decisions, costs)
  local isNever, hasCounted, rules = false, false, {}
  for _, decision in ipairs(decisions) do
    isNever = isNever or (not decision.allowed and not decision.retryAfterMs)
  end
  for index, book in ipairs(books) do
    local decision = decisions[index]
    local counted = not isNever and decision.counted
    if counted then
      book.state, hasCounted = counted.state, true
      rules[index] = words(book, counted, false)
    elseif decision.allowed then
      rules[index] = lookAt(book, costs[index])
    else
      rules[index] = words(book, decision, false)
    end
  end
  pool.isChanged = pool.isChanged or hasCounted
  return listed(rules), hasCounted
end

local function takesAny(costs)
  for _, cost in ipairs(costs) do
    if cost > 0 then return true end
  end
  return false
end

-- The units by the name of the rule, with of all rules or only of those that lease.
local function byName(costs, isOnlyLeased)
  local units = {}
  for index, book in ipairs(books) do
    if book.rule.isLeased or not isOnlyLeased then units[book.name] = costs[index] end
  end
  return units
end

-- Takes what was admitted: it is used at once, or set apart by "hold", which says of which rules.
local function take(decisions, costs, hold)
  for index, book in ipairs(books) do
    local isHeld = hold and costs[index] > 0 and hold.takes(book.rule)
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
    local decision = decisions[index]
    if hold or costs[index] == 0 then decision = decide(book, 0) end
    rules[index] = words(book, decision, true)
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
  if isRepeated then
    local figures = withoutTaking(costs)
    return figures, false, false
  end
  local rules, hasCounted = denied(decisions, costs)
  return rules, false, hasCounted
end
`;
