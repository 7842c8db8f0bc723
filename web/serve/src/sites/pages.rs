//! Custom error pages, which the operator configures.
//!
//! The pages are read when the server starts and on each reload, so that no file has to be opened
//! to send an error response.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

use bytes::Bytes;
use http::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};

use crate::config::error_pages::{ErrorPages, statuses};
use crate::files;
use crate::request::body::Body;

const MAX_PAGE_BYTES: u64 = 1 << 20;

struct Page {
    statuses: RangeInclusive<u16>,
    content_type: HeaderValue,
    text: Bytes,
}

#[derive(Default)]
pub(crate) struct Pages(Vec<Page>);

impl Pages {
    /// Reads the pages. A page that cannot be read causes a warning, and the built-in page is sent
    /// in its place.
    pub(crate) fn read(settings: &ErrorPages, root: &Path, warnings: &mut Vec<String>) -> Pages {
        let mut pages = Vec::new();
        for (key, path) in settings {
            let Ok(statuses) = statuses(key) else {
                continue;
            };
            let path = root.join(path);
            match read(&path) {
                Ok(text) => pages.push(Page {
                    statuses,
                    content_type: files::field(files::content_type(&path.to_string_lossy())),
                    text,
                }),
                Err(error) => warnings.push(format!(
                    "error page {key}, {}: {error}; the built-in page is sent",
                    path.display()
                )),
            }
        }
        // Pages for fewer statuses come first, so that the most specific page wins.
        pages.sort_by_key(|page| page.statuses.len());
        Pages(pages)
    }

    #[inline]
    pub(crate) fn apply(&self, response: Response<Body>) -> Response<Body> {
        if self.0.is_empty() {
            return response;
        }
        self.replace(response)
    }

    fn replace(&self, mut response: Response<Body>) -> Response<Body> {
        let status = response.status().as_u16();
        let Some(page) = self.0.iter().find(|page| page.statuses.contains(&status)) else {
            return response;
        };
        let fields = response.headers_mut();
        fields.insert(CONTENT_LENGTH, page.text.len().into());
        fields.insert(CONTENT_TYPE, page.content_type.clone());
        // The response must not be cached, because a file that is missing now may exist at the next
        // request.
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        *response.body_mut() = Body::from(page.text.clone());
        response
    }
}

fn read(path: &Path) -> io::Result<Bytes> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if metadata.len() > MAX_PAGE_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    fs::read(path).map(Bytes::from)
}
