//! Two processes that burn one CPU: what each gets.

use super::*;

/// What two burning processes, of levels 2 and 40, get done on CPU 0 in the same time.
fn two_burn(test: &str, daemon_args: &[&str]) -> [f64; 2] {
    let socket = socket(test);
    let _daemon = daemon(&socket, daemon_args);
    let both = ["2", "40"].map(|level| {
        let args = ["burn", "--json", "--pin", "0", "--level", level];
        let more = ["--duration", "1500ms", "--board", "required"];
        Running::start(&socket, &[&args[..], &more].concat()).0
    });
    both.map(|burning| {
        let text = burning.end();
        let burnt: serde_json::Value = serde_json::from_str(text.trim()).expect(&text);
        burnt["work"].as_f64().unwrap()
    })
}

/// In one of four runs the more urgent one gets twice as much done as the other; in every run both get something done. On a
/// machine that is busy with other things the two may begin far apart.
fn the_more_urgent_gets_more(test: &str, daemon_args: &[&str]) {
    let mut seen = Vec::new();
    for _ in 0..4 {
        let [urgent, other] = two_burn(test, daemon_args);
        seen.push((urgent, other));
        assert!(urgent > 0.0 && other > 0.0, "seconds of work: {seen:?}");
        if urgent > 2.0 * other {
            return;
        }
    }
    panic!("seconds of work: {seen:?}");
}

#[test]
fn the_less_urgent_never_starves_and_in_one_of_four_runs_gives_way_by_itself() {
    the_more_urgent_gets_more("cooperative", &["--cooperative"]);
}

#[test]
fn the_less_urgent_never_starves_and_in_one_of_four_runs_the_other_is_elevated() {
    let socket = socket("enforces");
    {
        let _daemon = daemon(&socket, &[]);
        let status = upshift(&socket, &["daemon", "--status"]);
        if !String::from_utf8_lossy(&status.stdout).contains("\"enforcing\": true") {
            eprintln!("skipped: the daemon may not use SCHED_FIFO here");
            return;
        }
    }
    the_more_urgent_gets_more("elevated", &[]);
}
