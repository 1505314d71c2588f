/** `weir-limiter`: the types of a service binding to the limiter, and of its answers. It has no code. */
export type { Hold, Lease, RuleDecision } from "../core/protocol/answers.ts";
export type { AllDecisions, AnyDecision, Decision, KeyReport } from "../core/protocol/decision.ts";
export type { LeaseReport } from "../core/protocol/calls.ts";
export type { ListedPolicy, ListedRule, PolicyList } from "../core/protocol/reservation-messages.ts";
export type { FieldError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export type * from "../client/transports/catalog-service.ts";
export type {
  AuditEntry,
  CatalogDocument,
  OverrideAnswer,
  OverrideFields,
  PolicyAnswer,
  Table,
} from "../core/catalog/calls.ts";
