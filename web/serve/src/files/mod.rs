//! Serves static files below one folder.
//!
//! | module | concern |
//! |---|---|
//! | `path` | converts the path of a request to a name below the root |
//! | `open` | opens a name, confined to the root |
//! | `recent` | a cache of opened files |
//! | `fields` | header fields that describe a file |
//! | `condition` | ETag, dates, ranges: RFC 9110, sections 13 and 14 |
//! | `kind` | the type of a file; the codings that a client accepts |
//! | `respond` | creates the response to a request |
//! | `content` | reads small files at once, large files piece by piece |
//! | `compress` | compresses files while they are sent |
//! | `listing` | a page for a folder |

mod compress;
mod condition;
mod content;
mod fields;
mod kind;
mod listing;
mod open;
mod path;
mod recent;
mod respond;

pub(crate) use compress::CompressedBody;
pub(crate) use content::{FileBody, PIECE};
pub(crate) use kind::{content_type, field};
pub(crate) use open::{Lookup, Root};
pub(crate) use recent::{CACHED_FILES, RecentFiles};
pub(crate) use respond::respond;
