//! Handles a request from its head to the end of its response.
//!
//! ```text
//!  Received ──first poll──▶ Queued ──its turn at its level──▶ Begun ──response──▶ Sending
//!      │                       │                                │                    │
//!      └───────────────────────┴──────── drop: the end ─────────┴────────────────────┘
//! ```
//!
//! [`ActiveRequest`](active::ActiveRequest) represents all of these stages.
//! [`ResponseFuture`](response_future::ResponseFuture), which hyper polls, owns the `ActiveRequest`
//! until there is a response. Then the `ActiveRequest` becomes the body of the response. So one
//! value counts, times and ends a request, regardless of its last stage. The operator, HTTP/2
//! frames and the order of streams share a part of it, the [`Entry`](in_flight::Entry).
//!
//! | module | concern |
//! |---|---|
//! | `service` | the processing of a request: site, level, admission, answer |
//! | `priority`, `rules` | the level of a request |
//! | `host` | the host that a request is for |
//! | `active` | the state of a request, and its end |
//! | `response_future`, `response_body` | the future of a response, and its body |
//! | `in_flight` | the list of requests in progress |
//! | `refusal`, `reply`, `builtin`, `body` | responses |
//! | `request_body` | the body of a request, and its unread part |

mod active;
pub(crate) mod body;
mod builtin;
pub(crate) mod host;
pub(crate) mod in_flight;
pub(crate) mod priority;
mod refusal;
pub(crate) mod reply;
pub(crate) mod request_body;
mod response_body;
pub(crate) mod response_future;
pub(crate) mod rules;
pub(crate) mod service;
