//! A request from its head to the end of its response.
//!
//! ```text
//!  Received ──first poll──▶ Queued ──its turn at its level──▶ Begun ──response──▶ Sending
//!      │                       │                                │                    │
//!      └───────────────────────┴──────── drop: the end ─────────┴────────────────────┘
//! ```
//!
//! [`Request`](under_way::Request) represents all of these stages.
//! [`Answering`](answering::Answering), the future that the HTTP library polls, holds it until
//! there is a response; then it is the body of that response. So one value counts, times, levels
//! and ends a request, whichever stage is the last. The operator, HTTP/2 frames and the order of
//! streams see a part of it, the [`Entry`](in_flight::Entry).
//!
//! | module | concern |
//! |---|---|
//! | `service` | the path of a request: site, level, admission, answer |
//! | `priority`, `rules` | the level of a request |
//! | `host` | the host that a request is for |
//! | `answering`, `outgoing` | the future of its response, and the body |
//! | `in_flight` | the list of requests under way |
//! | `refusal`, `reply`, `builtin`, `body` | responses |
//! | `request_body` | the body of a request, and its unread rest |

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
