/** durable-objects/keys/idempotency.ts in Lua: a call's charge, stored with its answer, and its refund. */
export const CHARGES = `
-- The terms of a rule. Under others it is unknown which units of a charge time has given back.
local function termsOf(rule)
  return (rule.burst and 'bucket ' or 'log ') .. text(rule.capacity) .. ' ' .. text(rule.limit) .. '/'
    .. text(rule.windowMs or 0)
end

-- What a call takes of each rule, and the terms by which time returns it.
function chargeOf(costs)
  local charge, terms = {}, {}
  for index, book in ipairs(books) do
    if costs[index] > 0 then
      charge[book.name], terms[book.name] = text(costs[index]) .. ' ' .. termsOf(book.rule), book.terms.stored
    end
  end
  return charge, terms
end

-- The rule under which a charge was taken, as its plan has it now.
local function chargedRule(charged, index)
  local rules = call.plans and call.plans[charged.plan or '?']
  local rule = rules and rules[index] or books[index].rule
  rule.capacity = rule.burst or rule.limit
  return rule
end

-- How many units the charge took of a rule, on the terms that its plan still has.
local function takenOf(charged, index)
  local units, terms = string.match(charged.charge[books[index].name] or '', '^(%d+) (.*)$')
  return terms == termsOf(chargedRule(charged, index)) and tonumber(units) or 0
end

-- What time has returned of a charge, in parts. Of an older script's charge it is unknown where terms are others.
local function returnedOf(charged, index, before, atMs)
  local rule, algorithm, book = books[index].rule, books[index].rule.algorithm, books[index]
  local noted, afterMs = charged.terms and charged.terms[book.name], math.max(0, nowMs - atMs)
  if noted then return algorithm.returnedSince(rule, book.terms, algorithm.termsIn(noted), atMs, nowMs) end
  local isSame, windowMs = termsOf(before) == termsOf(rule), before.windowMs
  if before.burst then return isSame and rule.limit * afterMs or math.huge end
  return (isSame or not windowMs or afterMs < windowMs) and 0 or math.huge
end

-- When all units of a charge came back, its answer goes too, and its call is decided anew. One of other rules stays.
function uncharge(charged)
  local taken, some, whole = 0, 0, 0
  for index, book in ipairs(books) do
    local unitsTaken = takenOf(charged, index)
    local units = math.min(call.cost[index], unitsTaken)
    if units > 0 then
      some = some + 1
      if units == unitsTaken then whole = whole + 1 end
      local before, atMs = chargedRule(charged, index), tonumber(charged.atMs)
      local charge = { atMs = atMs, capacity = before.capacity, returned = returnedOf(charged, index, before, atMs) }
      if charge.returned < math.huge then
        book.state = book.rule.algorithm.uncharge(book.rule, book.state, nowMs, units, charge)
      end
    end
  end
  if some == 0 then return end
  for _ in pairs(charged.charge) do taken = taken + 1 end
  charged.charge = nil
  remember(KEYS[#KEYS - 1], whole < taken and charged, true)
end
`;
