/** The header with the secret of `npm run serve` that ends the process (scripts/workerd.ts). */
export const STOP_HEADER = "x-weir-stop";
