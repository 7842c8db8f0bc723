//! A request from its head to the end of its response.
//!
//! ```text
//!  Received ──first poll──▶ Queued ──its turn at its level──▶ Begun ──response──▶ Sending
//!      │                       │                                │                    │
//!      └───────────────────────┴──────── drop: the end ─────────┴────────────────────┘
//! ```
//!
//! [`Request`](under_way::Request) is all of these: [`Answering`](answering::Answering), the future
//! that the HTTP library polls, holds it until there is a response; then it is the body of that
//! response. So a request is counted, timed, given its level and ended by one value, whichever of
//! its stages is the last.
//! The operator, frames of HTTP/2 and the order of streams see a part of it, the
//! [`Entry`](in_flight::Entry).
//!
//! | module | concern |
//! |---|---|
//! | `service` | the way of a request: site, level, admission, answer |
//! | `priority`, `rules` | the level of a request |
//! | `host` | the host that a request is for |
//! | `answering`, `outgoing` | the future of its response, and the body |
//! | `in_flight` | the list of requests under way |
//! | `refusal`, `reply`, `builtin`, `body` | responses |
//! | `request_body` | the body of a request, and the rest that nobody reads |

pub(crate) mod answering;
pub(crate) mod body;
mod builtin;
pub(crate) mod host;
pub(crate) mod in_flight;
mod outgoing;
pub(crate) mod priority;
mod refusal;
pub(crate) mod reply;
pub(crate) mod request_body;
pub(crate) mod rules;
pub(crate) mod service;
mod under_way;
