//! The requests of HTTP clients.

use httparse::{EMPTY_HEADER, Status};

/// The maximum length of a request in bytes.
pub(super) const MAX_REQUEST: usize = 8192;
/// The maximum number of header lines of a request.
const MAX_HEADERS: usize = 64;

/// A request that the server understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) what: Resource,
    /// Whether the method is HEAD: the client requests only the headers of the response.
    pub(super) is_head: bool,
}

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// The metrics, as OpenMetrics text or as the older text format of Prometheus.
    Metrics(Format),
    Healthy,
    Ready,
}

/// The format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A request that the server refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: &'static str,
    pub(super) message: String,
}

fn refused(status: &'static str, message: impl Into<String>) -> Refused {
    Refused { status, message: message.into() }
}

/// Parses the headers of a request. Returns `None` if the headers are not complete. The server ignores the body.
///
/// # Errors
/// Returns the response to a request that the server refuses.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Request>, Refused> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) if bytes.len() >= MAX_REQUEST => {
            let message = format!("a request has at most {MAX_REQUEST} bytes");
            return Err(refused("431 Request Header Fields Too Large", message));
        }
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            let message = format!("a request has at most {MAX_HEADERS} header lines");
            return Err(refused("431 Request Header Fields Too Large", message));
        }
        Err(error) => return Err(refused("400 Bad Request", format!("this is not an HTTP request: {error}"))),
    }
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(refused("405 Method Not Allowed", "this server supports the methods GET and HEAD")),
    };
    let target = request.path.unwrap_or_default();
    // A proxy sends the whole URL.
    let path = target.strip_prefix("http://").map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let what = match path {
        "/metrics" => {
            let accepted = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
            let is_open = |value: &[u8]| String::from_utf8_lossy(value).contains("application/openmetrics-text");
            let is_open = accepted.into_iter().any(|header| is_open(header.value));
            Resource::Metrics(if is_open { Format::OpenMetrics } else { Format::Prometheus })
        }
        "/healthz" => Resource::Healthy,
        "/readyz" => Resource::Ready,
        _ => return Err(refused("404 Not Found", "this server has the pages /metrics, /healthz and /readyz")),
    };
    Ok(Some(Request { what, is_head }))
}

/// A target of the fuzzer: the bytes of a request arrive in two pieces. The first byte of the input is the length of
/// the first piece.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    let Some((&first, bytes)) = input.split_first() else { return };
    let bytes = &bytes[..bytes.len().min(MAX_REQUEST)];
    let whole = parse(bytes);
    // If the first piece contains a complete or refused request, later bytes do not change the response.
    match parse(&bytes[..usize::from(first).min(bytes.len())]) {
        Ok(None) => {}
        early => assert_eq!(early, whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> &'static str {
        parse(text.as_bytes()).unwrap_err().status
    }

    #[test]
    fn paths_and_formats_are_recognized() {
        let of = |text: &str| parse(text.as_bytes()).unwrap().unwrap();
        let (old, open) = (Resource::Metrics(Format::Prometheus), Resource::Metrics(Format::OpenMetrics));
        for (text, what, is_head) in [
            ("GET /metrics HTTP/1.1\r\n\r\n", old, false),
            ("GET /metrics?x=1 HTTP/1.0\r\naccept: text/plain\r\n\r\n", old, false),
            ("GET /metrics HTTP/1.1\r\nACCEPT: application/openmetrics-text;version=1.0.0,*/*\r\n\r\n", open, false),
            ("HEAD http://host:1/metrics HTTP/1.1\r\n\r\n", old, true),
            ("GET /healthz HTTP/1.1\r\n\r\nbody", Resource::Healthy, false),
            ("GET /readyz HTTP/1.1\n\n", Resource::Ready, false),
        ] {
            assert_eq!(of(text), Request { what, is_head }, "{text}");
        }
    }

    #[test]
    fn wrong_requests_are_refused() {
        assert_eq!(status("hello\r\n\r\n"), "400 Bad Request");
        assert_eq!(status("\u{1}\u{2}"), "400 Bad Request");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404 Not Found");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status(&many), "431 Request Header Fields Too Large");
        let long = format!("GET /{}", "x".repeat(MAX_REQUEST));
        assert_eq!(status(&long), "431 Request Header Fields Too Large");
        for part in ["", "GET", "GET /metrics HTTP/1.1\r\n"] {
            assert_eq!(parse(part.as_bytes()), Ok(None), "{part}");
        }
    }
}
