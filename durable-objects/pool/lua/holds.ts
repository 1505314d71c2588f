/** holds.ts in Lua: what is outstanding, and how long a cost has to wait while holds expire one after another. */
export const HOLDS = `
-- The holds that were not read with the others: an exact wait may depend on any of them.
local function readRest()
  if not pool.hasMore then return end
  pool.hasMore = false
  local known = {}
  for _, hold in ipairs(pool.live) do known[hold.id] = true end
  local from, holds = 0, nil
  repeat
    holds = readHolds(from, from + CHUNK - 1)
    for _, hold in ipairs(holds) do
      local isKnown = known[hold.id] or pool.changed[hold.id] ~= nil
      if not isKnown then pool.live[#pool.live + 1] = hold end
    end
    from = from + CHUNK
  until #holds < CHUNK
  pool.moves = pool.moves + 1
  table.sort(pool.live, function(one, other) return one.atMs < other.atMs end)
end

local function findHold(id)
  for index, hold in ipairs(pool.live) do
    if hold.id == id then return hold, index end
  end
  if not pool.hasMore or not redis.call('ZSCORE', HOLDS, id) then return nil end
  readRest()
  return findHold(id)
end

local function removeHold(id)
  local hold, index = findHold(id)
  if not hold then return end
  table.remove(pool.live, index)
  shift(hold, -1)
  pool.changed[id], pool.isChanged = false, true
end

-- Sets units apart, in place of what the id had. A holder without any units has no hold.
local function placeHold(id, atMs, units)
  removeHold(id)
  local hold, isEmpty = { id = id, atMs = atMs, units = {} }, true
  for name, count in pairs(units) do
    if count > 0 then hold.units[name], isEmpty = count, false end
  end
  if isEmpty and isRegional(id) then return end
  local index = #pool.live + 1
  while index > 1 and pool.live[index - 1].atMs > atMs do index = index - 1 end
  table.insert(pool.live, index, hold)
  shift(hold, 1)
  pool.changed[id], pool.isChanged = hold, true
end

-- The instant of the last hold's expiry. Of those that were not read only the latest is known.
local function lastExpiryMs(name)
  local lastMs = nowMs
  for _, hold in ipairs(pool.live) do
    if not name or (hold.units[name] or 0) > 0 then lastMs = math.max(lastMs, hold.atMs) end
  end
  if not pool.hasMore then return lastMs end
  return math.max(lastMs, tonumber(redis.call('ZRANGE', HOLDS, '-1', '-1', 'WITHSCORES')[2]))
end

-- From when on the rule is as untouched if nobody comes. With very many holds it may be sooner, never later.
local function computedWholeMs(book, state)
  local rule, lastMs = book.rule, lastExpiryMs(book.name)
  if rule.isLeased then return lastMs end
  local seen = 0
  for _, hold in ipairs(pool.live) do
    local units = hold.units[book.name] or 0
    if units > 0 then state = rule.algorithm.debit(rule, state, hold.atMs, units) end
    seen = seen + units
  end
  if book.held.all > seen then state = rule.algorithm.debit(rule, state, lastMs, book.held.all - seen) end
  if not state then return lastMs end
  return math.max(lastMs, rule.algorithm.wholeAtMs(rule, state))
end

-- Asked for again and again in one call: remembered until holds or the state are others.
local function wholeAtMs(book, state)
  if book.wholeMs and book.wholeOf == state and book.wholeSince == pool.moves then return book.wholeMs end
  book.wholeMs, book.wholeOf, book.wholeSince = computedWholeMs(book, state), state, pool.moves
  return book.wholeMs
end

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
`;
