/** durable-objects/keys/charges.ts in Lua: what a call took, remembered beside its answer, and given back by name. */
export const CHARGES = `
-- The terms of a rule. Under others nobody knows which units of a charge time has given back.
local function termsOf(rule)
  return (rule.burst and 'bucket ' or 'log ') .. text(rule.capacity) .. ' ' .. text(rule.limit) .. '/'
    .. text(rule.windowMs or 0)
end

-- What a call takes of each rule, as durable-objects/keys/charges.ts remembers it.
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
