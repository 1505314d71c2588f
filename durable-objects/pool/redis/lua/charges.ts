/** durable-objects/keys/idempotency.ts in Lua: a call's charge, stored with its answer, and its refund. */
export const CHARGES = `
-- The terms of a rule. Under others it is unknown which units of a charge time has given back.
local function termsOf(rule)
  return (rule.burst and 'bucket ' or 'log ') .. text(rule.capacity) .. ' ' .. text(rule.limit) .. '/'
    .. text(rule.windowMs or 0)
end

-- What a call takes of each rule.
function chargeOf(costs)
  local charge = {}
  for index, book in ipairs(books) do
    if costs[index] > 0 then charge[book.name] = text(costs[index]) .. ' ' .. termsOf(book.rule) end
  end
  return charge
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

-- Since when time has returned units of a charge, by the faster of both plans; nil: it has returned all.
local function chargedMs(charged, index, units)
  local rule, before, atMs = books[index].rule, chargedRule(charged, index), tonumber(charged.atMs)
  local windowMs, afterMs = before.windowMs, math.max(0, nowMs - atMs)
  if termsOf(before) == termsOf(rule) or not windowMs then return atMs end
  if not before.burst then return afterMs < windowMs and atMs or nil end
  if before.limit * afterMs >= units * windowMs then return nil end
  local faster = before.limit * rule.windowMs / (windowMs * rule.limit)
  return faster > 1 and nowMs - math.ceil(afterMs * faster) or atMs
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
      local atMs = chargedMs(charged, index, units)
      if atMs then book.state = book.rule.algorithm.uncharge(book.rule, book.state, nowMs, units, atMs) end
    end
  end
  if some == 0 then return end
  for _ in pairs(charged.charge) do taken = taken + 1 end
  charged.charge = nil
  remember(KEYS[#KEYS - 1], whole < taken and charged, true)
end
`;
