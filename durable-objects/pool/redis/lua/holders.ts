/**
 * durable-objects/operations/reservations.ts in Lua: how the pool applies a holder's message.
 *
 * All units of a holder (a region) are one hold, "r:<holder>.<turn>". Each message reports the complete
 * holder, so late, lost, repeated and reordered messages do no harm. It also has the mark of the holder's
 * last answer: a pool that does not know it has lost writes. `seen` of any call is such a mark too (calls.ts).
 */
export const HOLDERS = `
local sizing = decode(ARGV[2])

-- Only one record changes in a call. The others are written as they were read: numbers take cjson long.
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

-- Also a pool that does not know the holder any more, although it should, has lost writes.
local function hasLostWrites(record)
  local seen = holding.seen
  if not seen or seen.atMs < numberIn('lost') then return false end
  local isKnown = record and tonumber(record.turn) >= seen.turn
  return (nowMs < seen.untilMs and not isKnown) or isOlder(seen)
end

-- It is unknown what was taken meanwhile, but it cannot have been more than everything. What holders had is within that.
function coverLostWrites(from)
  readRest()
  local regional = {}
  for _, hold in ipairs(pool.live) do
    if isRegional(hold.id) then regional[#regional + 1] = hold.id end
  end
  for _, id in ipairs(regional) do removeHold(id) end
  for _, book in ipairs(books) do book.state = book.rule.algorithm.empty(book.rule, book.state, nowMs) end
  pool.holders, pool.holderTexts, pool.holdersCount = {}, {}, 0
  set('holders', nil)
  pool.blockedMs = math.max(pool.blockedMs, nowMs + (from.mostHeldMs or 0))
  set('blocked', text(pool.blockedMs))
  set('lost', text(nowMs))
end

-- Whether the message is of another life of the holder than the last one. It crashed; and as its clock was put back then,
-- messages of before may come later and be taken for later ones. Nothing that the other life has is touched.
local function isOfAnotherLife(record)
  if not record or holding.isFresh then return true end
  return holding.seen and holding.seen.turn < tonumber(record.begun or 0)
end

-- What the holder used and keeps of each rule, and whether it gets another hold than before. Slots that it would keep may
-- have expired on the way, and others have them: they are lacking, unless none can have been given since writes were lost.
local function reported(record, hold)
  local report, isOther = {}, isOfAnotherLife(record)
  local isNew = isOther
  for index, book in ipairs(books) do
    local before = not isOther and tonumber(record.used[book.name] or 0) or 0
    local used, kept = holding.used[index] or 0, holding.kept[index] or 0
    local units = hold and hold.units[book.name]
    local isOver = book.rule.isLeased and record and pool.blockedMs <= nowMs
    local lacking = isOver and math.max(0, kept - (units or 0)) or 0
    report[index] = { used = math.max(used, before), delta = math.max(0, used - before), kept = kept - lacking,
      held = units, lacking = lacking }
    if not book.rule.isLeased then
      isNew = isNew or (units and report[index].delta + kept > units) or (not units and kept > 0)
    end
  end
  return report, isNew, isOther
end

-- Leases were promised: the slots that are kept move to the holder's hold, until the instant promised before. Idle slots of
-- another life stay where they are until they expire.
local function settleReport(record, report, hold, isNew, isOther)
  local kept, left, atMs = {}, {}, not isNew and hold and hold.atMs or 0
  for name, units in pairs(hold and hold.units or {}) do left[name] = units end
  for index, book in ipairs(books) do
    local told = report[index]
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
  return { id = id, isNew = isNew, report = report, units = kept, atMs = atMs, untilMs = untilMs,
    begun = isOther and holding.turn or record.begun or 0, rememberMs = record and record.rememberMs or 0 }
end

-- Takes note of a message. Returns what the holder has now; nil: nothing is noted, and nothing granted but that answer.
function noteHolding()
  readHolders()
  local record = pool.holders[holding.holder]
  if record and holding.turn <= tonumber(record.turn) then
    return nil, { overtakenBy = record.turn, mark = record, hold = record.hold }
  end
  if hasLostWrites(record) then
    coverLostWrites(holding)
    record = nil
  end
  if not record and pool.holdersCount >= sizing.mostHolders then
    -- A mark that is over, since it is not remembered; and no leases, which would be in no record.
    for _, book in ipairs(books) do
      if book.rule.isLeased then pool.blockedMs = math.max(pool.blockedMs, pool.soonestForgottenMs) end
    end
    return nil, { isNew = true, mark = { turn = holding.turn, atMs = nowMs, rememberMs = nowMs } }
  end
  local hold = record and findHold(record.hold)
  local report, isNew, isOther = reported(record, hold)
  pool.isChanged = true
  return settleReport(record, report, hold, isNew, isOther)
end

-- Adds units to what a holder has.
local function addTo(own, costs, untilMs)
  for name, units in pairs(byName(costs)) do own.units[name] = (own.units[name] or 0) + units end
  placeHold(own.id, untilMs, own.units)
end
`;

/** A holder's grant (core/reservations/sizing.ts in Lua), and how the pool remembers it. */
export const GRANTS = `
local function wantedByOthers(name)
  local units = 0
  for id, record in pairs(pool.holders) do
    if id ~= holding.holder and record.untilMs > nowMs then units = units + tonumber(record.wanted[name] or 0) end
  end
  return units
end

local function isContended()
  for id, record in pairs(pool.holders) do
    if id ~= holding.holder and record.untilMs > nowMs then
      if record.queueLength > 0 then return true end
      for _, units in pairs(record.wanted) do
        if tonumber(units) > 0 then return true end
      end
    end
  end
  return false
end

local function grantedUnits(wish)
  -- A reservation of a single unit saves no message.
  local most = wish.capacity * sizing.mostShare
  if most < 2 then return 0 end
  local share = wish.wanted / ((holding.isShort and 1 or 2) * wish.wanted + wish.wantedByOthers)
  local fair = (wish.free + wish.kept + wish.heldByOthers) * share
  most = math.floor(math.min(wish.wanted, fair, most))
  return math.max(0, math.min(most - wish.kept, wish.free))
end

-- Every rule grants the same part of what is missing, since a call needs units of all rules.
local function grantedTogether(wishes)
  local part, missing, units = 1, {}, {}
  for index, wish in ipairs(wishes) do
    missing[index] = math.max(0, wish.wanted - wish.kept)
    if missing[index] > 0 then part = math.min(part, grantedUnits(wish) / missing[index]) end
  end
  -- The product of two fractions may be a little too small, and rounding must not lose a unit for that.
  for index in ipairs(wishes) do units[index] = math.floor(missing[index] * part + 1e-6) end
  return units
end

local function wishesOf(own)
  local wishes = {}
  for index, book in ipairs(books) do
    local rule = book.rule
    -- Units of such a log cannot be spent elsewhere: the instant of each call counts.
    if rule.minIntervalMs > 0 or rule.countDenied then return nil end
    local hold = findHold(own.id)
    wishes[index] = {
      wanted = holding.wanted[index] or 0,
      kept = own.report[index].kept,
      free = decide(book, 0).remaining,
      capacity = rule.capacity,
      heldByOthers = book.held.regional - (hold and hold.units[book.name] or 0),
      wantedByOthers = wantedByOthers(book.name) }
  end
  return wishes
end

-- How many units of each rule, and for how long: longer than the shortest lifetime only if they can be spared.
local function sized(own)
  local wishes = wishesOf(own)
  if not wishes then return { unpack(NOTHING) }, holding.shortest end
  local units, isSpared = grantedTogether(wishes), true
  for index, wish in ipairs(wishes) do
    isSpared = isSpared and wish.kept + units[index] <= wish.free * sizing.spareShare
  end
  if isSpared or holding.lifetime.ttlMs <= holding.shortest.ttlMs then return units, holding.lifetime end
  local part = holding.shortest.ttlMs / holding.lifetime.ttlMs
  for _, wish in ipairs(wishes) do wish.wanted = math.floor(wish.wanted * part) end
  return grantedTogether(wishes), holding.shortest
end

-- "isLeasing": the holder gives out leases of what it gets.
local function grantText(granted, units, ttlMs, isLeasing)
  local texts, mark, surplus, isSurplus = {}, granted.mark, {}, false
  local token = isLeasing and takeTokens(sizing.fencingTokens)
  for index, book in ipairs(books) do
    texts[index] = text(units[index])
    local rule = book.rule
    local over = max(0, book.held.all + rule.algorithm.counted(rule, book.state, nowMs) - rule.capacity)
    surplus[index], isSurplus = text(over), isSurplus or over > 0
  end
  return '{' .. (granted.overtakenBy and '"overtakenBy":' .. text(granted.overtakenBy) .. ',' or '')
    .. format('"mark":{"turn":%d,"atMs":%d,"untilMs":%d,"wholeMs":%d}', mark.turn, mark.atMs, mark.rememberMs,
      mark.wholeMs or 0)
    .. ',"isNew":' .. tostring(granted.isNew or false)
    .. ',"units":' .. listed(texts)
    .. (isSurplus and ',"surplus":' .. listed(surplus) or '')
    .. ',"ttlMs":' .. text(ttlMs)
    .. ',"isContended":' .. tostring(isContended())
    .. (token and ',"fencingToken":"' .. token .. '"' or '') .. '}'
end

-- The grant of a holder whose message was not noted.
function refuse(refused, isLeasing)
  return grantText(refused, NOTHING, 0, isLeasing and refused.hold)
end

-- Sets units apart for the holder, and remembers it. "isLeasing": its cost has units that are leased.
function grant(own, isLeasing)
  local units, lifetime = sized(own)
  local untilMs = math.max(nowMs + lifetime.heldMs, own.atMs)
  addTo(own, units, untilMs)
  -- As text: cjson writes 14 digits, and turns have 16.
  local record = { turn = text(holding.turn), begun = text(own.begun), hold = own.id, untilMs = untilMs, atMs = nowMs,
    rememberMs = math.max(own.rememberMs, untilMs + sizing.rememberedMs), wholeMs = nowMs,
    leases = holding.leases, queueLength = holding.queueLength }
  local used, wanted = {}, {}
  for index, book in ipairs(books) do
    used[book.name], wanted[book.name] = own.report[index].used, holding.wanted[index] or 0
    isLeasing = isLeasing or (book.rule.isLeased and units[index] > 0)
    units[index] = units[index] - own.report[index].lacking
    record.wholeMs = math.max(record.wholeMs, lastsMs(book))
  end
  record.used, record.wanted = exactly(used), exactly(wanted)
  pool.holders[holding.holder] = record
  pool.holderTexts[holding.holder], pool.areHoldersChanged = encode(record), true
  -- The keys live until then, or they would seem to be lost.
  set('marked', text(max(numberIn('marked'), record.wholeMs, record.rememberMs)))
  return grantText({ mark = record, isNew = own.isNew }, units, lifetime.ttlMs, isLeasing)
end

-- A lease needs a holder: its units are added to what the holder has, with those of the other rules. A cost of rates alone
-- is used at once, as is what is charged once, and what comes with a message that is not noted (it was overtaken, or there
-- are too many holders): added to a hold it would be debited with the next message only.
function charged(own, refused)
  local isLeasing = false
  for _, book in ipairs(books) do isLeasing = isLeasing or book.rule.isLeased end
  if call.request or not isLeasing then return nil end
  if own then return { place = function() addTo(own, call.cost, own.untilMs) end } end
  if not refused or not refused.hold or not leases(call.cost) then return nil end
  local function place()
    local hold, units = findHold(refused.hold), byName(call.cost, true)
    for name, count in pairs(hold and hold.units or {}) do units[name] = (units[name] or 0) + count end
    placeHold(refused.hold, math.max(hold and hold.atMs or 0, nowMs + holding.lifetime.heldMs), units)
  end
  return { isOnlyLeased = true, place = place }
end
`;
