//! Tests of the expansions, and of the error message and the source location for each mistake.

use std::str::FromStr;

use proc_macro2::TokenStream;

use crate::expand;

const MAIN: &str = "async fn main() {}";

fn expansion(arguments: &str, item: &str, is_test: bool) -> syn::Result<String> {
    let tokens = |text| TokenStream::from_str(text).unwrap();
    expand(tokens(arguments), tokens(item), is_test).map(|tokens| tokens.to_string())
}

/// Returns the message for these arguments, and the token at which it points.
fn mistake(arguments: &str) -> (String, &str) {
    let error = expansion(arguments, MAIN, false).unwrap_err();
    let (start, end) = (error.span().start().column, error.span().end().column);
    (error.to_string(), &arguments[start..end])
}

#[test]
fn each_argument_is_a_call_of_the_builder() {
    let calls = [
        ("vcpus = 2", ". vcpus (2)"),
        ("vcpus = count()", ". vcpus (count ())"),
        (
            "level = 63",
            ". main_level (:: upshift :: Level :: at :: < { 63 } > ())",
        ),
        (
            "preemption",
            ". preemption (:: upshift :: Preemption :: Preferred)",
        ),
        (
            "preemption = \"off\"",
            ". preemption (:: upshift :: Preemption :: Off)",
        ),
        (
            "preemption = true",
            ". preemption (:: upshift :: Preemption :: Preferred)",
        ),
        (
            "preemption = false",
            ". preemption (:: upshift :: Preemption :: Off)",
        ),
        (
            "preemption = \"required\"",
            ". preemption (:: upshift :: Preemption :: Required)",
        ),
        (
            "driver = \"readiness\"",
            ". driver (:: upshift :: Driver :: Readiness)",
        ),
        (
            "driver = \"ring\",",
            ". driver (:: upshift :: Driver :: Ring)",
        ),
        ("tokio = false", ". tokio (false)"),
    ];
    // One of the cases for each argument.
    let combined_cases = [0, 2, 3, 8, 10];
    let combined = combined_cases.map(|n| calls[n].0).join(", ");
    let all = expansion(&combined, MAIN, false).unwrap();
    for (argument, call) in calls {
        let alone = expansion(argument, MAIN, false).unwrap();
        assert!(alone.contains(call), "{alone}");
    }
    for call in combined_cases.map(|n| calls[n].1) {
        assert!(all.contains(call), "{all}");
    }
}

#[test]
fn a_test_has_one_vcpu_by_default() {
    assert!(expansion("", MAIN, true).unwrap().contains(". vcpus (1)"));
    assert!(
        !expansion("vcpus = 2", MAIN, true)
            .unwrap()
            .contains(". vcpus (1)")
    );
    assert!(!expansion("", MAIN, false).unwrap().contains("vcpus"));
}

#[test]
fn the_error_for_an_unknown_argument_names_the_known_arguments() {
    let (message, token) = mistake("vcpus = 2, start_paused = true");
    assert_eq!(token, "start_paused");
    for part in [
        "unknown argument `start_paused`",
        "`vcpus = N`",
        "`preemption`",
        "`tokio = false`",
        "builder()",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let (message, token) = mistake("vcpus = 2, level = 3, vcpus = 4");
    assert!(
        message.contains("`vcpus` is given twice") && token == "vcpus",
        "{message}"
    );
}

#[test]
fn a_wrong_value_is_reported_at_its_token() {
    let mistakes = [
        ("vcpus = 0", "1 to 256", "0"),
        ("vcpus = 257", "1 to 256", "257"),
        ("vcpus = \"two\"", "1 to 256", "\"two\""),
        ("vcpus", "`vcpus = 2`", "vcpus"),
        ("level = 64", "0 (the most urgent) to 63", "64"),
        ("level = 4.5", "0 (the most urgent) to 63", "4.5"),
        ("level", "`level = 4`", "level"),
        (
            "preemption = \"on\"",
            "\"off\", \"preferred\", \"required\"",
            "\"on\"",
        ),
        ("worker_threads = 2", "`vcpus`", "worker_threads"),
        ("flavor = \"multi_thread\"", "remove it", "flavor"),
        (
            "driver = \"epoll\"",
            "\"auto\", \"ring\", \"readiness\"",
            "\"epoll\"",
        ),
        (
            "driver = Readiness",
            "\"auto\", \"ring\", \"readiness\"",
            "Readiness",
        ),
        ("driver", "`driver = \"readiness\"`", "driver"),
        ("tokio = \"no\"", "`true` or `false`", "\"no\""),
        ("tokio", "`tokio = false`", "tokio"),
    ];
    for (arguments, part, expected) in mistakes {
        let (message, token) = mistake(arguments);
        assert!(message.contains(part), "{arguments}: {message}");
        assert_eq!(token, expected, "{arguments}: {message}");
    }
    // Outside of the compiler, the span of several tokens begins at the first token.
    let (message, _) = mistake("level = -1");
    assert!(message.contains("0 (the most urgent) to 63"), "{message}");
}

/// Without the function the compiler would also report that `main` is missing.
#[test]
fn a_mistake_leaves_an_empty_function() {
    let tokens = |text| TokenStream::from_str(text).unwrap();
    let reported = crate::expand_or_report(tokens("vcpus = 0"), tokens(MAIN), false).to_string();
    assert!(reported.contains("compile_error"), "{reported}");
    assert!(reported.ends_with("fn main () { }"), "{reported}");
}

#[test]
fn a_function_that_is_not_async_or_takes_arguments_is_refused() {
    let message = |item| expansion("", item, false).unwrap_err().to_string();
    assert!(message("fn main() {}").contains("`async fn`"));
    assert!(message("async fn main(name: String) {}").contains("cannot have parameters"));
}

#[test]
fn a_main_that_returns_a_result_returns_the_error_of_the_build() {
    let result = expansion(
        "",
        "async fn main() -> std::io::Result<()> { Ok(()) }",
        false,
    );
    assert!(result.unwrap().contains(". build () ?"));
    assert!(
        expansion("", MAIN, false)
            .unwrap()
            .contains("unwrap_or_else")
    );
}

/// Returns the items to which a declaration expands, without spaces.
fn forms(arguments: &str, item: &str) -> syn::Result<String> {
    let tokens = |text| TokenStream::from_str(text).unwrap();
    crate::async_fn::expand(tokens(arguments), tokens(item))
        .map(|items| items.to_string().replace(' ', ""))
}

#[test]
fn a_declaration_becomes_two_functions_and_a_macro() {
    let items = forms(
        "AsyncCall<Accept> = Accept::on(fd)",
        "/// Accepts.\n///\n/// # Errors\n/// Some.\n#[inline]\n\
         pub fn accept_blocking(fd: impl AsFd) -> io::Result<OwnedFd> { body(fd) }",
    )
    .unwrap();
    for part in [
        "pubfnaccept_blocking(fd:implAsFd)->io::Result<OwnedFd>{body(fd)}",
        "pubfnaccept_async(fd:implAsFd,cid:CoroutineId)->AsyncCall<Accept>\
         {<AsyncCall<Accept>>::start(Accept::on(fd),cid)}",
        "macro_rules!__accept",
        "($fd:expr$(,)?)=>{$crate::calls::accept_blocking($fd)};",
        "($fd:expr,$cid:expr$(,)?)=>{$crate::calls::accept_async($fd,$cid)};",
        "pubuse__acceptasaccept;",
    ] {
        assert!(items.contains(part), "{part} in {items}");
    }
    assert_eq!(items.matches("#[inline]").count(), 2, "{items}");
    // The paragraph about the form comes before the sections.
    assert_eq!(items.matches("Accepts.").count(), 3, "{items}");
    let paragraph = items.find("synchronousform").unwrap();
    assert!(paragraph < items.find("#Errors").unwrap(), "{items}");
}

#[test]
fn a_declaration_without_a_body_waits_for_the_same_call() {
    let items = forms(
        "Later<usize> = later::map(pages)",
        "pub fn map(pages: usize) -> Answer;",
    );
    let items = items.unwrap();
    assert!(
        items.contains("pubfnmap(pages:usize)->Answer{<Later<usize>>::wait(later::map(pages))}"),
        "{items}"
    );
}

#[test]
fn the_asynchronous_form_owns_the_buffer() {
    let items = forms(
        "Later<usize, Vec<u8>> = later::read(file, buffer)",
        "fn read(file: usize, #[buffer] buffer: &mut [u8]) -> Answer;",
    )
    .unwrap();
    for part in [
        "fnread(file:usize,buffer:&mut[u8])->Answer",
        "fnread_async(file:usize,mutbuffer:Vec<u8>,cid:CoroutineId)",
        "::start(later::read(file,buffer),buffer,cid)",
    ] {
        assert!(items.contains(part), "{part} in {items}");
    }
}

#[test]
fn both_forms_have_the_generic_parameters() {
    let items = forms(
        "Call<Read<B>> = read(fd, buffer)",
        "pub fn read_blocking<B>(fd: Fd, buffer: B) -> (Answer, B) where B: Buffer { body() }",
    )
    .unwrap();
    assert!(items.contains("pubfnread_async<B>("), "{items}");
    assert_eq!(items.matches("whereB:Buffer").count(), 2, "{items}");
}

#[test]
fn a_wrong_declaration_is_refused() {
    let message = |arguments: &str, item: &str| forms(arguments, item).unwrap_err().to_string();
    let valid = "Call = call(fd)";
    assert!(message("", "fn f();").contains("TYPE = CALL"));
    assert!(message("Call", "fn f();").contains("expected `=`"));
    assert!(message(valid, "async fn f() {}").contains("synchronous form"));
    assert!(message(valid, "fn f(&self);").contains("`self` parameter"));
    assert!(message(valid, "fn f((a, b): (u8, u8));").contains("plain name"));
    assert!(message(valid, "fn f(cid: u64);").contains("`cid` already"));
    assert!(message(valid, "fn f(#[buffer] bytes: Vec<u8>);").contains("a slice"));
}
