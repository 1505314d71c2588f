/** Carries out one call, from reading the pool to the answer as JSON. The script ends here. */
export const ANSWERING = `
local function inWords(answer, granted, next)
  if call.op == 'limit' and answer.rules and not granted then return '{"rules":' .. answer.rules .. '}' end
  local parts = {}
  local function add(name, value)
    if value then parts[#parts + 1] = '"' .. name .. '":' .. value end
  end
  add('rules', answer.rules)
  add('missing', answer.isMissing and 'true')
  add('conflict', answer.conflict and '{"request":' .. encode(answer.conflict) .. '}')
  add('full', answer.full and '{"bound":"pool-holds","most":' .. text(answer.full) .. '}')
  add('hold', answer.hold and holdText(answer.hold))
  add('expiresAfterMs', answer.expiresAfterMs and text(answer.expiresAfterMs))
  add('granted', granted)
  add('next', next)
  add('report', answer.report)
  return '{' .. table.concat(parts, ',') .. '}'
end

local function answer()
  load()
  if call.op ~= 'limit' then defineCalls() end
  local own, refused, granted, next = nil, nil, nil, nil
  if holding then
    defineHolders()
    own, refused = noteHolding()
  end
  local said = calls[call.op](holding and charged(own, refused))
  if own then granted = grant(own, said.isLeasing) end
  if refused then granted = refuse(refused, said.isLeasing) end
  if holding then
    for _, book in ipairs(books) do next = next or not decide(book, 1).allowed end
    next = next and withoutTaking(ONES)
  end
  save()
  return inWords(said, granted, next)
end

return answer()
`;
