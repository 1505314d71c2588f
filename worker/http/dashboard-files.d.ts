export interface DashboardFile {
  readonly type: string;
  readonly etag: string;
  readonly body: string;
}

/** All files of the dashboard by name; "" is the page. `scripts/dashboard-build.ts` makes the module. */
export const FILES: Readonly<Record<string, DashboardFile>>;
