//! A request from its head to the end of its response.
//!
//! | module | concern |
//! |---|---|
//! | `service` | the way of a request: site, level, admission, answer |
//! | `priority`, `rules` | the level of a request |
//! | `host` | the host that a request is for |
//! | `under_way`, `exchange`, `counted`, `in_flight` | its state, its end, and its place in the list of requests |
//! | `refusal`, `reply`, `builtin`, `body` | responses |
//! | `request_body`, `upload` | the body of a request, and the rest that nobody reads |

pub(crate) mod body;
mod builtin;
mod counted;
mod exchange;
pub(crate) mod host;
pub(crate) mod in_flight;
pub(crate) mod priority;
mod refusal;
pub(crate) mod reply;
pub(crate) mod request_body;
pub(crate) mod rules;
pub(crate) mod service;
mod under_way;
mod upload;
