/** The codes with which sockets are closed: of RFC 6455, and of this protocol from the range that it leaves to private use. */

/** "Normal closure": RFC 6455, section 7.4.1. */
export const CLOSE_NORMAL = 1000;
/** "Internal error": RFC 6455, section 7.4.1. */
export const CLOSE_FAILED = 1011;
/** The connection of the holder broke. Only a worker says that to an object, when it relays a socket. */
export const CLOSE_BROKEN = 4400;
/** Its lease has ended. */
export const CLOSE_LOST = 4408;
/** Another socket has taken over its lease. */
export const CLOSE_RESUMED = 4409;
/** No `ping` came from its holder. */
export const CLOSE_SILENT = 4410;
/** The caller was denied. */
export const CLOSE_DENIED = 4429;
