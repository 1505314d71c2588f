/**
 * core/algorithms/holes.ts in Lua. A list is `{ from, to, from, to }`.
 *
 * Holes are a field of their own, `g:<rule>`, since a script from before there were any could not read a state with
 * them. With them stands the state that they belong to. When such a script has changed the state since, they are
 * forgotten: what was given back counts again until it leaves the window, and nothing is admitted twice.
 */
export const HOLES = `
local MOST_HOLES = 64
local NO_HOLES = {}

local function unitsInHoles(holes, from)
  local units = 0
  for at = 1, #holes, 2 do units = units + math.max(0, holes[at + 1] - math.max(holes[at], from)) end
  return units
end

local function after(holes, from, units)
  local to = from + units
  for at = 1, #holes, 2 do
    local start = math.max(holes[at], from)
    if start >= to then break end
    to = to + math.max(0, holes[at + 1] - start)
  end
  return to
end

local function withHole(holes, from, to)
  local list, isIn = {}, false
  local function add(first, last) list[#list + 1], list[#list + 2] = first, last end
  local start, finish = from, to
  for at = 1, #holes, 2 do
    local first, last = holes[at], holes[at + 1]
    if last >= from and first <= to then start, finish = math.min(start, first), math.max(finish, last) end
  end
  for at = 1, #holes, 2 do
    local first, last = holes[at], holes[at + 1]
    if last < from then
      add(first, last)
    elseif first > to then
      if not isIn then add(start, finish) end
      isIn = true
      add(first, last)
    end
  end
  if not isIn then add(start, finish) end
  return list
end

local function holesFrom(holes, from)
  local at = 1
  while at <= #holes and holes[at + 1] <= from do at = at + 2 end
  if at == 1 then return holes end
  local list = {}
  for index = at, #holes do list[#list + 1] = holes[index] end
  return list
end

-- Those of a state as it is stored.
local function readHoles(rule, stored)
  local kept = redis.call('HGET', MAIN, 'g:' .. rule.name)
  if not kept then return NO_HOLES end
  rule.hadHoles = true
  local of, list = string.match(kept, '^(.-)|(.*)$')
  if of ~= stored then return NO_HOLES end
  local holes = {}
  for number in string.gmatch(list, '%d+') do holes[#holes + 1] = tonumber(number) end
  return holes
end

local function writeHoles(rule, stored, holes)
  if #holes > 0 then
    local numbers = {}
    for at, number in ipairs(holes) do numbers[at] = text(number) end
    redis.call('HSET', MAIN, 'g:' .. rule.name, stored .. '|' .. table.concat(numbers, ' '))
  elseif rule.hadHoles then
    redis.call('HDEL', MAIN, 'g:' .. rule.name)
  end
end
`;
