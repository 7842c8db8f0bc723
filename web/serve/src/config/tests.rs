//! Tests of the settings in a configuration file, and of the faults that are reported.

use upshift::Level;

use super::*;

#[test]
fn a_file_sets_the_settings_that_it_names() {
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

/// The bound is necessary, because an idle client could otherwise keep a draining server alive.
#[test]
fn the_time_for_draining_is_bounded_by_default() {
    assert_eq!(Config::default().drain_timeout, Duration::from_secs(10));
}

#[test]
fn mistakes_are_named() {
    for (text, expected) in [
        (
            "listen = 8080",
            "line 1, column 10: write \"8080\" for this",
        ),
        ("listen = true", "an address in quotes, or a list"),
        ("listen = [\":80\", \":x\"]", "line 1, column 18: `:x`"),
        ("lissen = []", "unknown field `lissen`"),
        (
            "receive-level = 64",
            "line 1, column 17: 64: levels go from 0",
        ),
        (
            "listen = [\":80\", 21091]",
            "line 1, column 18: write \"21091\" for this",
        ),
        (
            "listen = [true]",
            "line 1, column 11: invalid type: boolean `true`, expected an address",
        ),
        ("ceiling = 9", "0 (most urgent) to 7"),
        (
            "ceiling = \"low\"",
            "line 1, column 11: `low`: urgencies go",
        ),
        ("ceiling = true", "an urgency, from 0 (most urgent) to 7"),
        (
            "receive-level = \"hihg\"",
            "line 1, column 17: `hihg` is not a level: use 0 (most urgent) to 63",
        ),
        (
            "receive-level = true",
            "line 1, column 17: invalid type: boolean `true`, expected a level, from 0",
        ),
        (
            "[limits]\nrequest-rate = \"many\"",
            "line 2, column 16: `many`: write a number",
        ),
        (
            "[limits]\nrequest-rate = -1",
            "line 2, column 16: -1: the number is negative",
        ),
        ("[limits]\nstreams = 4294967296", "the number is too large"),
        (
            "[files]\nlisting = \"yes\"",
            "line 2, column 11: `yes`: write true or false",
        ),
        ("[files]\nhidden = 1", "expected true or false, or \"on\""),
        ("[limits]\nbody-bytes = -1", "the number is negative"),
        ("[limits]\nbody-bytes = true", "a number of bytes, or"),
        (
            "[limits]\nidle-timeout = 75",
            "line 2, column 16: 75 has no unit: write \"75s\"",
        ),
        (
            "[[priority]]\npath = \"api\"\nlevel = 8",
            "must begin with /",
        ),
        (
            "[[priority]]\npath = \"/a\"\nlevel = 99",
            "line 3, column 9: 99: levels go from 0",
        ),
        (
            "[[priority]]\nlevel = 8\npeer = \"home\"",
            "line 3, column 8: `home` is not a network",
        ),
        ("listen = []", "no address"),
        ("[limits]\nheaders = 99999999999", "1 to 10000"),
        ("[limits]\nconnections = 0", "use 1 or more"),
        ("[limits]\nconnections-per-peer = 0", "use 1 or more"),
        ("[limits]\nstreams = 0", "use 1 or more"),
        ("[admission]\nin-flight = 0", "use 1 or more"),
        ("[error-pages]\n200 = \"a\"", "not an error status"),
        ("[[site]]", "site 1 names no host"),
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
        (
            "[files]\nfallback = \"/index.html\"",
            "write \"index.html\"",
        ),
        (
            "[headers]\ncontent-length = \"1\"",
            "the server sets `content-length` itself",
        ),
        (
            "[headers]\n\"a b\" = \"1\"",
            "not the name of a header field",
        ),
        ("[headers]\na = \"b\\nc\"", "value of a header field"),
        ("[[redirect]]\nfrom = \"/a\"\nto = \"/a/b\"", "for ever"),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn each_fault_has_a_line() {
    let text = "[limits]\nstreams = 0\nheaders = 0\n[files]\nfallback = \"/a\"";
    let error = Config::parse(text).unwrap_err();
    assert_eq!(error.lines().count(), 3, "{error}");
}

#[test]
fn one_address_needs_no_list() {
    let listen = |text: &str| {
        let config = Config::parse(&format!("listen = {text}")).unwrap();
        config
            .listen
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(listen("\":80\""), [":80"]);
    assert_eq!(listen("[\":443\", \":80,plain\"]"), [":443", ":80,plain"]);
}

#[test]
fn levels_have_names_in_the_file_too() {
    let text = "receive-level = \"urgent\"
        [[priority]]
        path = \"/x\"
        level = \"high\"
        [[site]]
        hosts = [\"a.test\"]
        [[site.priority]]
        level = \"12\"";
    let config = Config::parse(text).unwrap();
    assert_eq!(config.receive_level, Level::URGENT.get());
    assert_eq!(config.priority[0].level, Level::HIGH);
    assert_eq!(config.site[0].priority[0].level.get(), 12);
}

#[test]
fn a_number_may_be_in_quotes() {
    let text = "ceiling = \"2\"
        [limits]
        connections = \"50\"
        connections-per-peer = \"20\"
        headers = \"30\"
        streams = \"40\"
        request-rate = \"200\"
        [admission]
        in-flight = \"60\"";
    let config = Config::parse(text).unwrap();
    let Limits {
        connections,
        connections_per_peer,
        headers,
        streams,
        request_rate,
        ..
    } = config.limits;
    assert_eq!((connections, connections_per_peer), (50, 20));
    assert_eq!((headers, streams, request_rate), (30, 40, 200));
    assert_eq!((config.ceiling, config.admission.in_flight), (2, 60));
}

#[test]
fn a_switch_is_a_boolean_or_a_word() {
    for (on, off) in [("true", "false"), ("\"on\"", "\"off\"")] {
        let text =
            format!("listing = {off}\nhidden = {on}\nprecompressed = {off}\ncompress = {on}");
        let files = Config::parse(&format!("[files]\n{text}")).unwrap().files;
        assert!(!files.listing && !files.precompressed, "{text}");
        assert!(files.hidden && files.compress, "{text}");
    }
}

#[test]
fn an_error_about_a_misplaced_field_names_its_table() {
    for (text, expected) in [
        (
            "idle-timeout = \"10s\"",
            "line 1, column 1: unknown field `idle-timeout` here: it belongs in `[limits]`",
        ),
        (
            "[limits]\nmax-wait = \"1s\"",
            "line 2, column 1: unknown field `max-wait` here: it belongs in `[admission]`",
        ),
        (
            "[files]\nroot = \"a\"",
            "at the top of the file, before the first table or in `[[site]]`",
        ),
        ("[admission]\ncertificate = \"a\"", "in `[tls]`"),
        ("listing = true", "in `[files]`"),
        ("level = 1", "in `[[priority]]`"),
        ("from = \"/a\"", "in `[[redirect]]`"),
        ("hosts = []", "in `[[site]]`"),
        (
            "[[site]]\nceiling = 1",
            "at the top of the file, before the first table",
        ),
        // No table has these fields.
        ("no-such = 1", "unknown field `no-such`, expected one of"),
        ("\"a = 1\" = 1", "unknown field `a = 1`, expected one of"),
    ] {
        let error = Config::parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn unusual_methods_cause_a_warning() {
    let text =
        "[[priority]]\nmethod = \"get\"\nlevel = 8\n[[priority]]\nmethod = \"POST\"\nlevel = 8";
    let warnings = Config::parse(text).unwrap().warnings();
    assert_eq!(
        warnings,
        ["priority get=8: `get` is no method of HTTP; methods are upper case"]
    );
}

/// Returns the names of a table's fields, from the error about an unknown field.
fn fields(table: &str) -> Vec<String> {
    let error = Config::parse(&format!("{table}\nno-such = 1")).unwrap_err();
    let (_, known) = error.split_once("expected ").unwrap();
    // Every second part is between two backquotes.
    let names = known.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn the_guide_names_every_setting_and_its_table() {
    let guide = include_str!("../../../../docs/serve.md");
    for table in ["[admission]", "[files]", "[limits]"] {
        assert!(guide.contains(&format!("`{table}`")), "{table}");
    }
    for table in ["", "[admission]", "[files]", "[limits]", "[[site]]"] {
        for name in fields(table) {
            let forms = ["`NAME`", "\nNAME = ", "[NAME]"];
            let is_named = forms
                .iter()
                .any(|form| guide.contains(&form.replace("NAME", &name)));
            assert!(is_named, "{table} {name}");
        }
    }
}
