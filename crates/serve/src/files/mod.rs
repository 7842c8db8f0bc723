//! Static files below one folder.
//!
//! | module | concern |
//! |---|---|
//! | `path` | from the path of a request to a name below the root |
//! | `open` | opening it, so that nothing outside is reached |
//! | `condition` | ETag, dates, ranges: RFC 9110, sections 13 and 14 |
//! | `respond` | from a request to a response |
//! | `content` | reading: small files at once, large ones piece by piece |
//! | `listing` | a page for a folder |

mod condition;
mod content;
mod listing;
mod open;
mod path;
mod respond;

pub(crate) use content::FileBody;
pub(crate) use open::Root;
pub(crate) use respond::{content_type, respond};
