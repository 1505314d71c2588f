/**
 * durable-objects/operations/reservations.ts in Lua: how the pool takes note of a holder's message.
 *
 * All units of a holder (a region) are one hold, "r:<holder>.<turn>". Each message says everything about the holder,
 * so late, lost, repeated and reordered messages do no harm. It also has the mark of the last answer that reached the
 * holder. A pool that does not know this mark any more has lost writes.
 */
export const HOLDERS = `
local sizing = cjson.decode(ARGV[2])

-- Of the others nothing changes, so they are written again as they were read: numbers take cjson long.
function readHolders()
  pool.holders, pool.holderTexts = {}, pool.fields.holders and decode(pool.fields.holders) or {}
  pool.holdersCount, pool.soonestForgottenMs = 0, math.huge
  for id, stored in pairs(pool.holderTexts) do
    local record = decode(stored)
    if record.rememberMs <= nowMs then
      pool.holderTexts[id] = nil
    else
      pool.holders[id] = record
      pool.holdersCount = pool.holdersCount + 1
      pool.soonestForgottenMs = math.min(pool.soonestForgottenMs, record.rememberMs)
    end
  end
end

-- A mark says that there was a write then. A pool whose writes end before that, which began after it, or which does not
-- know the holder any more although it should, has lost some.
local function hasLostWrites(record)
  local seen = holding.seen
  if not seen or seen.atMs < numberIn('lost') then return false end
  local isKnown = record and tonumber(record.turn) >= seen.turn
  if nowMs < seen.untilMs and not isKnown then return true end
  local began = pool.fields.since
  local isOlder = not began or tonumber(began) > seen.atMs or numberIn('now') < seen.atMs
  return nowMs < (seen.wholeMs or 0) and isOlder
end

-- Nobody knows what was taken meanwhile, but it cannot have been more than everything. What holders had is within that.
local function coverLostWrites()
  readRest()
  local regional = {}
  for _, hold in ipairs(pool.live) do
    if isRegional(hold.id) then regional[#regional + 1] = hold.id end
  end
  for _, id in ipairs(regional) do removeHold(id) end
  for _, book in ipairs(books) do
    book.state = book.rule.algorithm.empty(book.rule, book.state, nowMs)
  end
  pool.holders, pool.holderTexts, pool.holdersCount = {}, {}, 0
  pool.blockedMs = math.max(pool.blockedMs, nowMs + holding.mostHeldMs)
  set('blocked', text(pool.blockedMs))
  set('lost', text(nowMs))
end

-- Whether the message is of another life of the holder than the last one. It crashed; and as its clock was put back then,
-- messages of before may come later and be taken for later ones. Nothing that the other life has is touched.
local function isOfAnotherLife(record)
  if not record or holding.isFresh then return true end
  return holding.seen and holding.seen.turn < tonumber(record.begun or 0)
end

-- What the holder used and keeps, and whether this is another hold than before. Slots that it would keep may have expired on
-- the way, and others have them: they are lacking, unless nobody can have got any since writes were lost.
local function reported(record, hold)
  local said, isOther = {}, isOfAnotherLife(record)
  local isNew = isOther
  for index, book in ipairs(books) do
    local before = not isOther and tonumber(record.used[book.name] or 0) or 0
    local used, kept = holding.used[index] or 0, holding.kept[index] or 0
    local units = hold and hold.units[book.name]
    local isOver = book.rule.isLeased and record and pool.blockedMs <= nowMs
    local lacking = isOver and math.max(0, kept - (units or 0)) or 0
    said[index] = { used = math.max(used, before), delta = math.max(0, used - before), kept = kept - lacking,
      held = units, lacking = lacking }
    if not book.rule.isLeased then
      isNew = isNew or (units and said[index].delta + kept > units) or (not units and kept > 0)
    end
  end
  return said, isNew, isOther
end

-- Leases were promised: what is kept of those is moved to the holder's hold, for as long as was said before. Idle slots of
-- another life stay where they are until they expire.
local function settleReport(record, said, hold, isNew, isOther)
  local kept, left, atMs = {}, {}, not isNew and hold and hold.atMs or 0
  for name, units in pairs(hold and hold.units or {}) do left[name] = units end
  for index, book in ipairs(books) do
    local told = said[index]
    if book.rule.isLeased then
      kept[book.name] = told.kept
      left[book.name] = isOther and left[book.name] and math.max(0, left[book.name] - told.kept) or nil
      if hold and told.kept > 0 then atMs = hold.atMs end
    elseif not isNew and told.held then
      book.state = book.rule.algorithm.debit(book.rule, book.state, nowMs, told.delta)
      kept[book.name] = told.kept
    end
    if isNew and not book.rule.isLeased then told.kept = 0 end
  end
  if isNew and hold then placeHold(hold.id, hold.atMs, left) end
  local id = isNew and 'r:' .. holding.holder .. '.' .. text(holding.turn) or record.hold
  local untilMs = math.max(nowMs + holding.lifetime.heldMs, atMs)
  placeHold(id, untilMs, kept)
  return { id = id, isNew = isNew, said = said, units = kept, atMs = atMs, untilMs = untilMs,
    begun = isOther and holding.turn or record.begun or 0 }
end

-- Takes note of a message. Returns what the holder has now; nil: nothing is noted, and nothing granted but that answer.
function noteHolding()
  readHolders()
  local record = pool.holders[holding.holder]
  if record and holding.turn <= tonumber(record.turn) then
    return nil, { overtakenBy = record.turn, mark = record, hold = record.hold }
  end
  if hasLostWrites(record) then
    coverLostWrites()
    record = nil
  end
  if not record and pool.holdersCount >= sizing.mostHolders then
    -- A mark that is over, since nobody remembers it; and no leases, which nobody would account for.
    for _, book in ipairs(books) do
      if book.rule.isLeased then pool.blockedMs = math.max(pool.blockedMs, pool.soonestForgottenMs) end
    end
    return nil, { isNew = true, mark = { turn = holding.turn, atMs = nowMs, rememberMs = nowMs } }
  end
  local hold = record and findHold(record.hold)
  local said, isNew, isOther = reported(record, hold)
  pool.isChanged = true
  local own = settleReport(record, said, hold, isNew, isOther)
  own.rememberMs = record and record.rememberMs or 0
  return own
end

-- Adds units to what a holder has.
local function addTo(own, costs, untilMs)
  for name, units in pairs(byName(costs)) do own.units[name] = (own.units[name] or 0) + units end
  placeHold(own.id, untilMs, own.units)
end
`;
