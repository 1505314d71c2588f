/** One call from beginning to end. */
export const ANSWERING = `
-- What a holder is charged for is added to what it has. When its message is not noted (it was overtaken, or there is no room
-- for another holder) it is used at once, but what is leased has to be somebody's. So is what is charged once: the holder may
-- hear of it again and again, and does not count it.
local function charged(own, refused)
  if call.request then return nil end
  if own then
    local function place() addTo(own, call.cost, own.untilMs) end
    return { takes = function() return true end, place = place }
  end
  if not refused or not refused.hold or not leases(call.cost) then return nil end
  local function place()
    local hold = findHold(refused.hold)
    local has = { id = refused.hold, units = {} }
    for name, units in pairs(hold and hold.units or {}) do has.units[name] = units end
    for name, units in pairs(byName(call.cost, true)) do has.units[name] = (has.units[name] or 0) + units end
    placeHold(has.id, math.max(hold and hold.atMs or 0, nowMs + holding.lifetime.heldMs), has.units)
  end
  return { takes = function(rule) return rule.isLeased end, place = place }
end

local function holdText(hold)
  return '{"id":' .. cjson.encode(hold.id) .. ',"expiresAfterMs":' .. text(hold.ttlMs)
    .. (hold.token and ',"fencingToken":"' .. hold.token .. '"' or '') .. '}'
end

local function inWords(answer, granted, next)
  local parts = {}
  local function add(name, value)
    if value then parts[#parts + 1] = '"' .. name .. '":' .. value end
  end
  add('rules', answer.rules)
  add('missing', answer.isMissing and 'true')
  add('conflict', answer.conflict and '{"request":' .. cjson.encode(answer.conflict) .. '}')
  add('hold', answer.hold and holdText(answer.hold))
  add('expiresAfterMs', answer.expiresAfterMs and text(answer.expiresAfterMs))
  add('granted', granted)
  add('next', next)
  if answer.report then
    local counts = {}
    for name, count in pairs(answer.report) do counts[#counts + 1] = '"' .. name .. '":' .. text(count) end
    add('report', '{' .. table.concat(counts, ',') .. '}')
  end
  return '{' .. table.concat(parts, ',') .. '}'
end

local function answer()
  load()
  readHolders()
  pool.answers, pool.blockedMs = {}, numberIn('blocked')
  local own, refused, granted, next = nil, nil, nil, nil
  if holding then own, refused = noteHolding() end
  local said = calls[call.op](charged(own, refused))
  if own then granted = grant(own, said.isLeasing) end
  if refused then
    local token = said.isLeasing and refused.hold and takeTokens(sizing.fencingTokens) or nil
    granted = answerOf(refused, NOTHING, { ttlMs = 0 }, token)
  end
  if holding then
    local ones = {}
    for index in ipairs(books) do ones[index] = 1 end
    local rules, isAdmitted = withoutTaking(ones)
    next = not isAdmitted and rules or nil
  end
  save()
  return inWords(said, granted, next)
end

return answer()
`;
