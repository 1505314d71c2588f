/** `weir`: the types of a service binding to the limiter, and of what it answers. There is nothing here to run. */
export type { Hold, Lease, RuleDecision } from "../core/protocol/answers.ts";
export type { Cost } from "../core/policies/policy.ts";
export type { AllDecisions, Decision, KeyReport } from "../core/protocol/decision.ts";
export type { LeaseReport } from "../core/protocol/messages.ts";
export type { ListedPolicy, ListedRule, PolicyList } from "../core/protocol/reservation-messages.ts";
export type { FieldError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export type * from "../client/transports/catalog-service.ts";
export type { LimiterCalls, LimiterService } from "../client/transports/transport.ts";
export type { AuditEntry, CatalogDocument, OverrideAnswer, PolicyAnswer } from "../core/catalog/calls.ts";
export type { OverrideFields, Table } from "../core/catalog/calls.ts";
