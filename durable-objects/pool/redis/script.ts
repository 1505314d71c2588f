import { DECISIONS, HOLDS, WAITS, WHOLE } from "./lua/accounts.ts";
import { ANSWERING, ANSWERS, CALLS, OTHER_CALLS } from "./lua/calls.ts";
import { CHARGES } from "./lua/charges.ts";
import { CONCURRENCY } from "./lua/concurrency.ts";
import { GCRA } from "./lua/gcra.ts";
import { GRANTS, HOLDERS } from "./lua/holders.ts";
import { SLIDING_LOG } from "./lua/sliding-log.ts";
import { TOKEN_BUCKET } from "./lua/token-bucket.ts";

/*
 * The script that decides on a pool in Redis. One call is atomic, and its clock is the server's `TIME`. The
 * arithmetic is that of core/algorithms/, core/accounts/ and core/reservations/sizing.ts; the tests compare
 * both sides answer by answer. KEYS are those of `poolKeys`, ARGV a `PoolCall` and a `PoolSizing` as JSON. It
 * returns a `PoolAnswer` as JSON.
 *
 * Redis keeps only a script's text between calls, so each call makes all functions again. That was a third of
 * the time of a plain call. So functions that not every call needs are made on demand.
 */

/**
 * The pool in one call: read at the beginning, changed in memory, and written at the end if changed.
 *
 * Fields of the hash (instants are milliseconds of the server's clock):
 * - `now`: the latest instant of a change; `since`: that of the first
 * - `s:<rule>`: the rule's state; `o:<rule>`: its units outstanding, first all of them, then those of holders
 *   (regions)
 * - `g:<rule>`: more of the state, which older scripts do not know, and the state that it belongs to: refunded
 *   units of a sliding log, and what a bucket would count if it had never shrunk
 * - `p:<rule>`: the terms by which time returns units of the rule: those of the last call that took some
 * - `u:<hold>`: the hold's units, by rule
 * - `holders`: all holders, each as JSON in JSON
 * - `fence`: the highest fencing token in use
 * - `reclaimed`: how many leases expired
 * - `blocked`: no leases are granted before this instant
 * - `lost`: when the pool last noticed lost writes
 * - `reset`: the last reset
 * - `answers`: when the last remembered answer is forgotten
 * - `marked`: the latest instant in a mark: everything is whole then
 */
const POOL = `
local format, max, encode, decode = string.format, math.max, cjson.encode, cjson.decode
local call = decode(ARGV[1])
local holding = call.holding
local MAIN, HOLDS = KEYS[1], KEYS[2]
-- Every call reads so many holds; more only where an exact wait needs them.
local CHUNK = 200
local FIELDS = { 'now', 'since', 'holders', 'fence', 'reclaimed', 'blocked', 'lost', 'reset', 'answers',
  'marked' }
local FIXED = #FIELDS

local pool = { fields = {}, noted = {}, held = {}, changed = {}, live = {}, answers = {}, isChanged = false, due = 0,
  moves = 0 }
local books, nowMs, clockMs = {}, 0, 0

-- Whole numbers as text: tostring and cjson round from 1e14 on; and "%.0f" takes three times as long as "%d".
local function text(number)
  return format('%d', number)
end

local function numberIn(field)
  return tonumber(pool.fields[field] or '0')
end

local function heldFrom(stored)
  if not stored then return { all = 0, regional = 0 } end
  local all, regional = string.match(stored, '^(%d+) (%d+)$')
  return { all = tonumber(all), regional = tonumber(regional) }
end

-- A field that is written if anything is.
local function note(field, value)
  pool.fields[field], pool.noted[field] = value, value or false
end

local function set(field, value)
  note(field, value)
  pool.isChanged = true
end
`;

/** Read by every call. */
const READING = `
local ALGORITHMS = { ['token-bucket'] = tokenBucket, ['sliding-log'] = slidingLog, concurrency = concurrency,
  gcra = gcra }
local algorithms = {}

local function algorithmOf(name)
  local make = ALGORITHMS[name]
  algorithms[name] = algorithms[name] or (make and make())
  return algorithms[name]
end

-- What belongs to the state: if an older script has changed that since, it is dropped.
local function moreOf(stored, more)
  local of, rest = string.match(more or '', '^(.-)|(.*)$')
  return of == stored and rest or nil
end

local function readBook(index, rule, stored, held, more, noted)
  rule.algorithm = algorithmOf(rule.algorithm)
  rule.capacity = rule.burst or rule.limit
  rule.minIntervalMs = rule.minIntervalMs or 0
  rule.isLeased = rule.algorithm.isLeased
  rule.logKey = KEYS[2 + index]
  local state = stored and rule.algorithm.read(stored, moreOf(stored, more), rule) or nil
  pool.held[rule.name] = heldFrom(held)
  noted = noted and rule.algorithm.termsIn and rule.algorithm.termsIn(noted)
  -- After a write of an older script, which notes none, they are unknown.
  local isKnown = noted and (not stored or (state and state.hasTerms))
  if noted then noted.algorithm = rule.algorithm end
  return { rule = rule, name = rule.name, held = pool.held[rule.name], state = state, before = state,
    noted = noted, terms = isKnown and noted or rule,
    hasMore = more and true or false, other = not state and not rule.isLeased and stored, otherMore = more }
end

local function takesAny(costs)
  for _, cost in ipairs(costs) do
    if cost > 0 then return true end
  end
  return false
end

-- What time has returned until now came by the terms until now. A call that takes units, or a region that wants some, puts
-- its own in force.
local function follow(book, isTaking)
  local rule, terms, algorithm = book.rule, book.terms, book.rule.algorithm
  local isKnown, isSame = terms ~= rule, terms.limit == rule.limit and terms.burst == rule.burst
  if not algorithm.termsAfter or (isKnown and isSame and terms.windowMs == rule.windowMs) then return end
  book.state = algorithm.debit(terms, book.state, nowMs, 0)
  if isKnown and not isTaking then return end
  book.terms = algorithm.termsAfter(rule, book.noted, isKnown, nowMs)
  note('p:' .. book.name, book.terms.stored)
  pool.isChanged = pool.isChanged or isKnown
end

-- The rule had another algorithm: what that counts is charged again, as if taken now (storage/conversions.ts).
local function convert(book)
  local stored, rule = book.other, book.rule
  local algorithm = algorithmOf(string.match(stored, '^%S+'))
  local state = algorithm and algorithm.used and algorithm.read(stored, moreOf(stored, book.otherMore), rule)
  if not state then return end
  book.state = rule.algorithm.debit(rule, nil, nowMs, algorithm.used(state))
  pool.isChanged = true
end

local function readRules()
  local rules, fields = call.rules, FIELDS
  for index = 1, #rules do
    local at, name = FIXED + 4 * index, rules[index].name
    fields[at - 3], fields[at - 2], fields[at - 1], fields[at] = 's:' .. name, 'o:' .. name, 'g:' .. name, 'p:' .. name
  end
  local values = redis.call('HMGET', MAIN, unpack(fields))
  for index = 1, FIXED do pool.fields[fields[index]] = values[index] or nil end
  for index = 1, #rules do
    local at = FIXED + 4 * index
    books[index] = readBook(index, rules[index], values[at - 3], values[at - 2], values[at - 1], values[at])
  end
end

local function load()
  local time = redis.call('TIME')
  clockMs = time[1] * 1000 + math.floor(time[2] / 1000)
  readRules()
  nowMs = max(clockMs, numberIn('now'))
  for _, book in ipairs(books) do
    if book.other then convert(book) end
  end
  pool.blockedMs = numberIn('blocked')
  local found = redis.call('ZRANGE', HOLDS, '0', text(CHUNK - 1), 'WITHSCORES')
  if found[1] or holding or call.op ~= 'limit' then defineHolds() end
  if found[1] then loadHolds(found) end
  local isTaking = (call.op == 'limit' or call.op == 'hold') and takesAny(call.cost)
  isTaking = isTaking or (call.op == 'limit' and holding and takesAny(holding.wanted))
  for _, book in ipairs(books) do follow(book, isTaking) end
end
`;

/** Lua text of functions that exist after `define` was called. An algorithm's own function returns it. */
function later(define: string, functions: readonly string[], lua: string): string {
  if (functions.length === 0) return `local function ${define}()\n${lua}end\n`;
  const declared = `local ${functions.join(", ")}\n`;
  return `${declared}local function ${define}()\nif ${functions[0]} then return end\n${lua}end\n`;
}

/**
 * Wraps the rest of the script in a function. To make one, Lua 5.1 mostly searches the list of the variables
 * found before at that level (7 us of 22). A new level begins a new list.
 */
function within(...lua: readonly string[]): string {
  return `return (function()\n${lua.join("")}end)()\n`;
}

export const POOL_SCRIPT =
  POOL +
  within(
    later("tokenBucket", [], TOKEN_BUCKET),
    later("gcra", [], GCRA),
    later("slidingLog", [], SLIDING_LOG),
    later("concurrency", [], CONCURRENCY),
    later(
      "defineHolds",
      ["loadHolds", "readRest", "findHold", "removeHold", "placeHold", "isRegional", "exactly", "takeTokens"],
      HOLDS,
    ),
    READING,
    WHOLE,
    within(
      later("defineWaits", ["withHolds", "blocked"], WAITS),
      DECISIONS,
      ANSWERS,
      later("defineCharges", ["chargeOf", "uncharge"], CHARGES),
      CALLS,
      later(
        "defineHolders",
        ["readHolders", "coverLostWrites", "noteHolding", "charged", "grant", "refuse"],
        HOLDERS + GRANTS,
      ),
      later("defineCalls", ["holdText"], OTHER_CALLS),
      ANSWERING,
    ),
  );
