//! Answers requests for files.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    self, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderValue, LAST_MODIFIED, RANGE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Method, Response, StatusCode, Uri};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::compress::{CompressedBody, Compressor};
use super::condition::{Outcome, evaluate};
use super::content::{FileBody, read_small};
use super::fields::Fields;
use super::kind::{accepted_codings, field, is_text, may_be_precompressed};
use super::listing;
use super::open::{Found, Lookup, Root};
use super::path::{Name, PathError, parse};
use crate::config::Files;
use crate::operator::notice::Notices;
use crate::request::body::Body;
use crate::request::reply;

/// Number of header fields for which space is reserved; responses rarely have more.
const RESERVED_FIELDS: usize = 10;

/// Characters that are escaped in a path (RFC 3986, section 3.3).
const PATH_ESCAPES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

static FAILURES: Notices = Notices::new();
static DENIED: Notices = Notices::new();

pub(crate) async fn respond(
    lookup: Lookup<'_>,
    settings: &Files,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Response<Body> {
    if method != Method::GET && method != Method::HEAD {
        return reply::method_not_allowed("files support only GET and HEAD\n");
    }
    // RFC 9110, section 14.2: ranges are for GET.
    let ranges = method == Method::GET;
    match try_respond(lookup, settings, uri, headers, ranges).await {
        Ok(response) => response,
        Err(error) if is_denied(&error) => {
            report_denied(&error);
            let text = "the server may not read this\n";
            reply::text(StatusCode::FORBIDDEN, text)
        }
        Err(error) => {
            FAILURES.report(format_args!("{}: {error}", uri.path()));
            read_error(&error)
        }
    }
}

/// Returns the response, or the error of the file system that prevents one.
async fn try_respond(
    lookup: Lookup<'_>,
    settings: &Files,
    uri: &Uri,
    headers: &HeaderMap,
    ranges: bool,
) -> std::io::Result<Response<Body>> {
    let name = match parse(uri.path(), settings.hidden) {
        Ok(name) => name,
        Err(PathError::Invalid) => {
            return Ok(reply::text(
                StatusCode::BAD_REQUEST,
                "the path is invalid\n",
            ));
        }
        Err(PathError::Hidden) => return Ok(not_found()),
    };
    let (kind, found) = match lookup.find(&name.relative).await {
        Ok(Some(found)) => (found.kind, Ok(found)),
        Ok(None) => return respond_missing(lookup, settings, headers, ranges).await,
        // A folder that may be searched but not read can have an index.
        Err(error) if is_denied(&error) => match lookup.root.stat(&name.relative) {
            Ok((FileType::Directory, _)) => (FileType::Directory, Err(error)),
            _ => return Err(error),
        },
        Err(error) => return Err(error),
    };
    match kind {
        FileType::RegularFile if name.is_folder => {
            respond_missing(lookup, settings, headers, ranges).await
        }
        FileType::RegularFile | FileType::Directory
            if !name.is_literal || name.is_folder != kind.is_dir() =>
        {
            Ok(redirect(&name, kind.is_dir(), uri.query()))
        }
        FileType::RegularFile => {
            respond_file(lookup, settings, &name.relative, found?, headers, ranges).await
        }
        FileType::Directory => {
            let index = format!("{}/{}", name.relative, settings.index);
            match lookup.find(&index).await? {
                Some(found) if found.kind.is_file() => {
                    respond_file(lookup, settings, &index, found, headers, ranges).await
                }
                _ if settings.listing => {
                    list(lookup.root, found?, name.relative, settings.hidden).await
                }
                _ => respond_missing(lookup, settings, headers, ranges).await,
            }
        }
        _ => respond_missing(lookup, settings, headers, ranges).await,
    }
}

async fn respond_missing(
    lookup: Lookup<'_>,
    settings: &Files,
    headers: &HeaderMap,
    ranges: bool,
) -> std::io::Result<Response<Body>> {
    if let Some(name) = &settings.fallback
        && let Some(found) = lookup.find(name).await?
        && found.kind.is_file()
    {
        return respond_file(lookup, settings, name, found, headers, ranges).await;
    }
    Ok(not_found())
}

fn is_denied(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

fn report_denied(error: &std::io::Error) {
    let user = geteuid().as_raw();
    DENIED.report(format_args!("{error}; the server runs as user {user}"));
}

fn read_error(error: &std::io::Error) -> Response<Body> {
    let resource_errors =
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|errno| Some(errno.raw_os_error()));
    if resource_errors.contains(&error.raw_os_error()) {
        return reply::retry_later(StatusCode::SERVICE_UNAVAILABLE, "out of resources\n");
    }
    let text = "the file cannot be read\n";
    reply::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

fn not_found() -> Response<Body> {
    reply::text(StatusCode::NOT_FOUND, "there is no such file\n")
}

/// Redirects to the canonical path of a name. The path of a folder ends with a slash, since
/// relative links of its page depend on the slash.
fn redirect(name: &Name, folder: bool, query: Option<&str>) -> Response<Body> {
    // Only one slash may be in front, because two would name another host.
    let mut location = String::from("/");
    if name.relative != "." {
        location.extend(utf8_percent_encode(&name.relative, PATH_ESCAPES));
        location.push_str(if folder { "/" } else { "" });
    }
    if let Some(query) = query {
        location = format!("{location}?{query}");
    }
    reply::redirect(&location)
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
        .map_err(|error| std::io::Error::other(error.to_string()))??;
    let mut response = reply::with_type(StatusCode::OK, "text/html; charset=utf-8", page);
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

async fn respond_file(
    lookup: Lookup<'_>,
    settings: &Files,
    name: &str,
    plain: Arc<Found>,
    headers: &HeaderMap,
    ranges: bool,
) -> std::io::Result<Response<Body>> {
    let kind = &plain.fields(name).kind;
    let checks_precompressed = settings.precompressed && may_be_precompressed(kind);
    let mut found = plain.clone();
    let mut encoding = None;
    if checks_precompressed {
        for (coding, suffix) in accepted_codings(headers) {
            match lookup.find(&format!("{name}{suffix}")).await {
                Ok(Some(compressed)) if compressed.kind.is_file() => {
                    found = compressed;
                    encoding = Some(coding);
                    break;
                }
                // The uncompressed file can be sent instead.
                Err(error) if is_denied(&error) => report_denied(&error),
                other => _ = other?,
            }
        }
    }
    // Ranges need the length of the encoded file, which is not known before it is compressed.
    let compresses = settings.compress && is_text(kind);
    let is_whole = !ranges || !headers.contains_key(RANGE);
    let mut compressor = None;
    if compresses
        && is_whole
        && encoding.is_none()
        && found.size >= settings.compress_from
        && accepted_codings(headers).any(|(coding, _)| coding == "gzip")
    {
        compressor = Compressor::take();
        encoding = compressor.is_some().then_some("gzip");
    }
    let coded_fields =
        encoding.map(|coding| Fields::new(kind.clone(), &found, coding, compressor.is_some()));
    let fields = coded_fields.as_ref().unwrap_or_else(|| plain.fields(name));
    let size = found.size;
    let outcome = evaluate(headers, &fields.validators, size, ranges);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = outcome.status();
    // The space includes the fields that hyper and the server add, so the map grows only once.
    response.headers_mut().reserve(RESERVED_FIELDS);
    let content = match outcome {
        Outcome::Whole => Some(0..size),
        Outcome::Part(range) => {
            let content_range = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            insert(&mut response, CONTENT_RANGE, &content_range);
            Some(range)
        }
        Outcome::Unsatisfiable => {
            insert(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(response);
        }
        Outcome::PreconditionFailed => return Ok(response),
        Outcome::NotModified => None,
    };
    let headers = response.headers_mut();
    if let Some(etag) = &fields.etag {
        headers.insert(ETAG, etag.clone());
    }
    if let Some(modified) = &fields.modified {
        headers.insert(LAST_MODIFIED, modified.clone());
    }
    if checks_precompressed || compresses {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    if let Some(value) = &settings.cache_control {
        insert(&mut response, CACHE_CONTROL, value);
    }
    let Some(range) = content else {
        return Ok(response);
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, field(kind.clone()));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(coding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    if let Some(compressor) = compressor {
        let file = FileBody::new(found.file.clone(), range);
        *response.body_mut() = Body::compressed(CompressedBody::new(file, compressor));
        return Ok(response);
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let small = found.whole.get_or_init(|| read_small(&found.file, size));
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
    use http::header::LOCATION;

    use super::*;

    #[test]
    fn redirects_stay_on_this_host() {
        let location = |path: &str| {
            let uri: Uri = path.parse().unwrap();
            let name = parse(uri.path(), false).unwrap();
            let response = redirect(&name, true, uri.query());
            response.headers()[LOCATION].to_str().unwrap().to_owned()
        };
        assert_eq!(location("/folder?x=1"), "/folder/?x=1");
        assert_eq!(location("//evil.example"), "/evil.example/");
        assert_eq!(location("/%5Cevil.example"), "/%5Cevil.example/");
        assert_eq!(location("/%2Fevil.example%2F"), "/evil.example/");
        assert_eq!(location("/a%0D%0Ab:c@%25%3F"), "/a%0D%0Ab:c@%25%3F/");
    }
}
