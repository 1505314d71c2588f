/** `weir-limiter/llm`: budgets of language models, in tokens and in money, exact while answers stream. */
export { budgetFetch, type BudgetFetchOptions } from "../middleware/llm/budget-fetch.ts";
export {
  BudgetExceededError,
  budgetMiddleware,
  type BudgetMiddleware,
} from "../middleware/llm/language-model.ts";
export type { Budget, BudgetOptions, BudgetUnit, ModelRequest } from "../middleware/llm/budget.ts";
export type { Price } from "../middleware/llm/usage.ts";
export { settleOnEnd } from "../middleware/settle-on-end.ts";
