//! What a configuration file sets, and which mistakes are named.

use super::*;

#[test]
fn a_file_sets_what_it_names() {
    let config = Config::parse(
        r#"
        listen = ["127.0.0.1:8443"]
        root = "/srv/www"
        endpoints = ["healthz"]
        ceiling = 2
        tls = { certificate = "c.pem", key = "k.pem" }

        [[priority]]
        path = "/api"
        method = "POST"
        level = 8

        [limits]
        body-bytes = "16M"
        idle-timeout = "10s"
        "#,
    )
    .unwrap();
    assert_eq!(config.listen[0].to_string(), "127.0.0.1:8443");
    assert_eq!(config.endpoints, [Endpoint::Healthz]);
    assert_eq!(config.priority[0].to_string(), "POST /api=8");
    assert_eq!(config.limits.body_bytes, 16 << 20);
    assert_eq!(config.limits.idle_timeout, Duration::from_secs(10));
    assert_eq!(config.limits.headers, Limits::default().headers);
}

/// Nothing that a client leaves undone keeps a server for longer than this.
#[test]
fn the_end_is_bounded_by_default() {
    assert_eq!(Config::default().drain_timeout, Duration::from_secs(10));
}

#[test]
fn mistakes_are_named() {
    for (text, says) in [
        ("listen = 3", "expected a sequence"),
        ("lissen = []", "unknown field `lissen`"),
        ("receive-level = 64", "use 0 to 63"),
        ("ceiling = 9", "0 to 7"),
        ("[limits]\nidle-timeout = 10", "unit"),
        (
            "[[priority]]\npath = \"api\"\nlevel = 8",
            "must begin with /",
        ),
        ("[[priority]]\nlevel = 64", "not a level"),
        ("listen = []", "no address"),
        ("[limits]\nheaders = 99999999999", "1 to 10000"),
        ("[limits]\nconnections = 0", "use 1 or more"),
        ("[limits]\nconnections-per-peer = 0", "use 1 or more"),
        ("[limits]\nstreams = 0", "use 1 or more"),
        ("[admission]\nin-flight = 0", "use 1 or more"),
        ("[error-pages]\n200 = \"a\"", "no status of an error"),
        ("[[site]]", "for which hosts"),
        ("[[site]]\nhosts = [\"a.test:80\"]", "without the port"),
        (
            "[[site]]\nhosts = [\"a\"]\n[[site]]\nhosts = [\"A\"]",
            "site 1 and site 2",
        ),
        (
            "[[site]]\nhosts = [\"a\"]\ntls = { certificate = \"c\", key = \"k\" }",
            "for clients that ask",
        ),
        (
            "[[site]]\nhosts = [\"a\"]\nlisten = []",
            "unknown field `listen`",
        ),
        (
            "[[site]]\nhosts = [\"a\"]\n[site.files]\ncache-control = \"a\\nb\"",
            "value of a header",
        ),
        ("[files]\ncache-control = \"a\\nb\"", "value of a header"),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
}
