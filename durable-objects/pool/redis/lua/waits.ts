/** core/accounts/account.ts in Lua: how long a cost has to wait while holds expire one after another. */
export const WAITS = `
defineHolds()

local function leaseWaitMs(book, cost)
  local missing = cost + book.held.all - book.rule.capacity
  if missing <= 0 then return 0 end
  for _, hold in ipairs(pool.live) do
    missing = missing - (hold.units[book.name] or 0)
    if missing <= 0 then return hold.atMs - nowMs end
  end
  return nil
end

-- The exact wait for a cost that fits the capacity, all holds being used as they expire.
local function waitMs(book, state, cost)
  readRest()
  if book.rule.isLeased then return leaseWaitMs(book, cost) end
  local rule, name, outstanding, atMs, index = book.rule, book.name, book.held.all, nowMs, 1
  while true do
    local decision = rule.algorithm.decide(rule, state, atMs, cost, outstanding)
    if decision.allowed then return atMs - nowMs end
    while pool.live[index] and (pool.live[index].units[name] or 0) == 0 do index = index + 1 end
    local hold = pool.live[index]
    local passesAtMs = decision.retryAfterMs and atMs + decision.retryAfterMs
    if not hold or (passesAtMs and passesAtMs <= hold.atMs) then return passesAtMs and passesAtMs - nowMs end
    atMs = hold.atMs
    while pool.live[index] and pool.live[index].atMs <= atMs do
      local units = pool.live[index].units[name] or 0
      if units > 0 then state = rule.algorithm.debit(rule, state, atMs, units) end
      outstanding, index = outstanding - units, index + 1
    end
  end
end

-- The figures of a denial (or of what it is once it has been counted) with holds reckoned in.
function withHolds(book, state, denial, cost)
  denial.retryAfterMs = nil
  if cost <= book.rule.capacity then denial.retryAfterMs = waitMs(book, state, cost) end
  denial.resetAfterMs = wholeAtMs(book, state) - nowMs
end

-- Nobody knows who has leases yet: none are given until those from before have ended.
function blocked(book, decision, cost)
  local blockedMs = pool.blockedMs - nowMs
  local isNever = cost > book.rule.capacity
  local figures = { allowed = cost == 0, remaining = 0, resetAfterMs = max(decision.resetAfterMs, blockedMs) }
  if cost == 0 then return figures end
  figures.reason = isNever and 'cost-over-limit' or 'quota'
  if not isNever then figures.retryAfterMs = max(waitMs(book, nil, cost) or 0, blockedMs) end
  return figures
end
`;
