/** core/algorithms/concurrency.ts in Lua. Holds occupy units and nothing is counted, so there is no state. */
export const CONCURRENCY = `
local concurrency = { isLeased = true }

concurrency.read = function() return nil end
concurrency.counted = function() return 0 end

concurrency.decide = function(rule, _, _, cost, outstanding)
  local remaining = math.max(0, rule.limit - outstanding)
  if cost == 0 then return { allowed = true, remaining = remaining, resetAfterMs = 0 } end
  if cost <= remaining then return { allowed = true, remaining = remaining - cost, resetAfterMs = 0 } end
  local reason = cost > rule.limit and 'cost-over-limit' or 'quota'
  return { allowed = false, reason = reason, remaining = remaining, resetAfterMs = 0 }
end

-- A lease that expires, is settled or given back has used nothing.
local function untouched() return nil end
concurrency.noteHold = untouched
concurrency.debit = untouched
concurrency.credit = untouched
concurrency.uncharge = untouched
concurrency.empty = untouched
return concurrency
`;
