//! From a request to the response with a file.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    self, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderValue, LAST_MODIFIED, LOCATION, RANGE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::condition::{Answer, evaluate};
use super::content::{FileBody, small};
use super::fields::Fields;
use super::kind::{accepted, field, is_squeezable, is_text};
use super::listing;
use super::open::{Found, Looking, Root};
use super::path::{Wrong, name_of};
use super::squeeze::{Compressor, Squeezed};
use crate::body::Body;
use crate::config::Files;
use crate::notice::Notices;
use crate::reply;

/// Header fields of a response with a file: seldom more.
const FIELDS: usize = 10;

static FAILURES: Notices = Notices::new();

/// Answers a request for a file.
pub(crate) async fn respond(
    looking: Looking<'_>,
    settings: &Files,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Response<Body> {
    if method != Method::GET && method != Method::HEAD {
        return reply::only_get("files can only be read\n");
    }
    // RFC 9110, section 14.2: ranges are for GET.
    let ranges = method == Method::GET;
    match find(looking, settings, uri, headers, ranges).await {
        Ok(response) => response,
        Err(error) => {
            FAILURES.say(format_args!("{}: {error}", uri.path()));
            unreadable(&error)
        }
    }
}

async fn find(
    looking: Looking<'_>,
    settings: &Files,
    uri: &Uri,
    headers: &HeaderMap,
    ranges: bool,
) -> std::io::Result<Response<Body>> {
    let name = match name_of(uri.path(), settings.hidden) {
        Ok(name) => name,
        Err(Wrong::Bad) => return Ok(reply::text(StatusCode::BAD_REQUEST, "this is not a path\n")),
        Err(Wrong::Hidden) => return Ok(not_found()),
    };
    let Some(found) = looking.find(&name.relative).await? else {
        return Ok(not_found());
    };
    match found.kind {
        FileType::RegularFile if !name.folder => {
            file(looking, settings, &name.relative, found, headers, ranges).await
        }
        FileType::Directory if !name.folder => Ok(redirect(uri)),
        FileType::Directory => {
            let index = format!("{}/{}", name.relative, settings.index);
            match looking.find(&index).await? {
                Some(found) if found.kind.is_file() => {
                    file(looking, settings, &index, found, headers, ranges).await
                }
                _ if settings.listing => {
                    list(looking.root, found, name.relative, settings.hidden).await
                }
                _ => Ok(not_found()),
            }
        }
        _ => Ok(not_found()),
    }
}

/// Of a file that is there.
fn unreadable(error: &std::io::Error) -> Response<Body> {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|errno| Some(errno.raw_os_error()));
    if short.contains(&error.raw_os_error()) {
        return reply::later(StatusCode::SERVICE_UNAVAILABLE, "too much at a time\n");
    }
    let why = "the file cannot be read\n";
    reply::text(StatusCode::INTERNAL_SERVER_ERROR, why)
}

fn not_found() -> Response<Body> {
    reply::text(StatusCode::NOT_FOUND, "there is no such file\n")
}

/// To the same path with a slash at its end: links of the page are relative to it.
fn redirect(uri: &Uri) -> Response<Body> {
    // With one slash in front, or it would name another host.
    let path = uri.path().trim_start_matches('/');
    let query = uri
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    let mut response = reply::text(StatusCode::PERMANENT_REDIRECT, "");
    if let Ok(location) = HeaderValue::from_str(&format!("/{path}/{query}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

async fn list(
    root: &Arc<Root>,
    found: Arc<Found>,
    relative: String,
    hidden: bool,
) -> std::io::Result<Response<Body>> {
    let root = root.clone();
    let page =
        upshift::spawn_blocking(move || listing::page(&root, &found.file, &relative, hidden));
    let page = page
        .await
        .map_err(|ended| std::io::Error::other(ended.to_string()))??;
    let mut response = reply::typed(StatusCode::OK, "text/html; charset=utf-8", page);
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

async fn file(
    looking: Looking<'_>,
    settings: &Files,
    name: &str,
    plain: Arc<Found>,
    headers: &HeaderMap,
    ranges: bool,
) -> std::io::Result<Response<Body>> {
    let kind = &plain.fields(name).kind;
    let squeezable = settings.precompressed && is_squeezable(kind);
    let mut found = plain.clone();
    let mut encoding = None;
    if squeezable {
        for (coding, suffix) in accepted(headers) {
            if let Some(squeezed) = looking.find(&format!("{name}{suffix}")).await?
                && squeezed.kind.is_file()
            {
                found = squeezed;
                encoding = Some(coding);
                break;
            }
        }
    }
    // A part of what is not there yet cannot be told.
    let squeezes = settings.compress && is_text(kind);
    let whole = !ranges || !headers.contains_key(RANGE);
    let mut compressor = None;
    if squeezes
        && whole
        && encoding.is_none()
        && found.size >= settings.compress_from
        && accepted(headers).any(|(coding, _)| coding == "gzip")
    {
        compressor = Compressor::take();
        encoding = compressor.is_some().then_some("gzip");
    }
    let coded =
        encoding.map(|coding| Fields::new(kind.clone(), &found, coding, compressor.is_some()));
    let about = coded.as_ref().unwrap_or_else(|| plain.fields(name));
    let size = found.size;
    let answer = evaluate(headers, &about.validators, size, ranges);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = answer.status();
    // With those that the library and the server add: the map grows once.
    response.headers_mut().reserve(FIELDS);
    let length = match answer {
        Answer::Whole => Some(0..size),
        Answer::Part(range) => {
            let content_range = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            insert(&mut response, CONTENT_RANGE, &content_range);
            Some(range)
        }
        Answer::Unsatisfiable => {
            insert(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(response);
        }
        Answer::PreconditionFailed => return Ok(response),
        Answer::NotModified => None,
    };
    let fields = response.headers_mut();
    if let Some(etag) = &about.etag {
        fields.insert(ETAG, etag.clone());
    }
    if let Some(modified) = &about.modified {
        fields.insert(LAST_MODIFIED, modified.clone());
    }
    if squeezable || squeezes {
        fields.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    if let Some(value) = &settings.cache_control {
        insert(&mut response, CACHE_CONTROL, value);
    }
    let Some(range) = length else {
        return Ok(response);
    };
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, field(kind.clone()));
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(coding) = encoding {
        fields.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    if let Some(compressor) = compressor {
        let file = FileBody::new(found.file.clone(), range);
        *response.body_mut() = Body::squeezed(Squeezed::new(file, compressor));
        return Ok(response);
    }
    fields.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let small = found.whole.get_or_init(|| small(&found.file, size));
    *response.body_mut() = match small {
        Some(bytes) => Body::from(bytes.slice(range.start as usize..range.end as usize)),
        None if range.is_empty() => Body::from(Bytes::new()),
        None => Body::file(FileBody::new(found.file.clone(), range)),
    };
    Ok(response)
}

fn insert(response: &mut Response<Body>, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_this_host() {
        let location = |path: &str| {
            let response = redirect(&path.parse().unwrap());
            response.headers()[LOCATION].to_str().unwrap().to_owned()
        };
        assert_eq!(location("/folder?x=1"), "/folder/?x=1");
        assert_eq!(location("//evil.example"), "/evil.example/");
    }
}
