//! Checks that both output formats are well-formed for any events, and that they represent the
//! events.

use proptest::prelude::*;
use serde_json::Value;
use upshift_core::{CoroutineId, Level, State, Step};
use upshift_trace::spans::Spans;
use upshift_trace::{Coroutine, Event, EventKind, Timeline};

/// A name with characters that are special in JSON, in XML or on a terminal.
const HOSTILE: &str = "a\"b\\c\n\u{1b}[2J\u{0}\u{7f}\u{fffe}</title><script>&'é\u{2028}";

fn chrome(timeline: &Timeline) -> Value {
    let mut out = Vec::new();
    timeline.write_chrome(&mut out).unwrap();
    serde_json::from_slice(&out)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
}

/// Returns the entries of a track, begins and ends, in the order in which a viewer takes them.
fn slices(json: &Value, tid: u64) -> Vec<&Value> {
    let all = json["traceEvents"].as_array().unwrap();
    let of_track = all
        .iter()
        .filter(|entry| entry["tid"] == tid && (entry["ph"] == "B" || entry["ph"] == "E"));
    let mut slices: Vec<&Value> = of_track.collect();
    slices.sort_by(|a, b| {
        a["ts"]
            .as_f64()
            .unwrap()
            .total_cmp(&b["ts"].as_f64().unwrap())
    });
    slices
}

fn assert_balanced(json: &Value, tracks: u64) {
    for tid in 1..=tracks {
        let mut depth = 0;
        for slice in slices(json, tid) {
            depth += if slice["ph"] == "B" { 1 } else { -1 };
            assert!((0..=2).contains(&depth), "track {tid}: {slice}");
        }
        assert_eq!(depth, 0, "track {tid}");
    }
}

/// Asserts that tags are closed in order, and that no text contains markup.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("every tag ends");
        assert!(!text.contains('>'), "{text}");
        assert!(tag.matches('"').count() % 2 == 0, "{tag}");
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{svg}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let is_text = |c: char| c == '\n' || (!c.is_control() && c != '\u{fffe}');
    assert!(svg.chars().all(is_text));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

fn coroutine(timeline: &mut Timeline, n: u64, level: u8, by: Option<u32>) -> Coroutine {
    Coroutine {
        id: CoroutineId::from_u64(n),
        level: Level::new(level).unwrap(),
        site: timeline.site(&format!("src/main.rs:{n}:1")),
        by,
    }
}

#[test]
fn a_wake_is_an_arrow_to_the_poll_and_parked_is_empty() {
    let mut timeline = Timeline::new("a program");
    let waker = coroutine(&mut timeline, 1, 9, Some(0));
    let woken = coroutine(&mut timeline, 2, 3, Some(0));
    let woken_elsewhere = Coroutine {
        by: Some(1),
        ..woken
    };
    timeline.add(1_000, 0, EventKind::Coroutine(Step::Polled, waker));
    timeline.add(1_500, 1, EventKind::Coroutine(Step::Ready, woken));
    timeline.add(2_500, 1, EventKind::Unparked);
    timeline.add(
        2_600,
        1,
        EventKind::Coroutine(Step::Polled, woken_elsewhere),
    );
    timeline.add(3_000, 0, EventKind::Coroutine(Step::Exited, waker));
    timeline.add(
        4_600,
        1,
        EventKind::Coroutine(Step::Blocked, woken_elsewhere),
    );
    timeline.add(5_000, 1, EventKind::Parked);
    timeline.add(9_000, 0, EventKind::Arrived(3));
    let json = chrome(&timeline);
    assert_balanced(&json, 2);
    let all = json["traceEvents"].as_array().unwrap();
    let arrow = |phase: &str| all.iter().find(|entry| entry["ph"] == phase).unwrap();
    let (from, to) = (arrow("s"), arrow("f"));
    assert_eq!((&from["tid"], &from["ts"]), (&1.into(), &1.5.into()));
    assert_eq!((&to["tid"], &to["ts"]), (&2.into(), &2.6.into()));
    assert_eq!(from["id"], to["id"]);
    let begins: Vec<(&str, f64)> = slices(&json, 2)
        .iter()
        .map(|slice| (slice["ph"].as_str().unwrap(), slice["ts"].as_f64().unwrap()))
        .collect();
    assert_eq!(begins, [("B", 2.5), ("B", 2.6), ("E", 4.6), ("E", 5.0)]);
    let poll = slices(&json, 2)[1];
    assert_eq!(poll["name"], "src/main.rs:2:1");
    assert_eq!(poll["cat"], "level 3");
    assert_eq!(slices(&json, 2)[2]["args"]["until"], "blocked");
    let spans = Spans::of(&timeline);
    let of_second: Vec<_> = spans.awake.iter().filter(|awake| awake.vcpu == 1).collect();
    assert_eq!(of_second.len(), 1);
    assert_eq!((of_second[0].from, of_second[0].to), (2_500, 5_000));
    assert_well_formed(&timeline.to_svg());
}

#[test]
fn polls_under_way_at_the_start_begin_with_the_recording() {
    let mut timeline = Timeline::new("");
    let coroutine = coroutine(&mut timeline, 1, 9, Some(0));
    timeline.add(4_000, 0, EventKind::Coroutine(Step::Yielded, coroutine));
    timeline.add(5_000, 0, EventKind::Coroutine(Step::Polled, coroutine));
    timeline.length = 7_000;
    let json = chrome(&timeline);
    let times: Vec<f64> = slices(&json, 1)
        .iter()
        .map(|slice| slice["ts"].as_f64().unwrap())
        .collect();
    assert_eq!(times, [0.0, 0.0, 4.0, 5.0, 7.0, 7.0]);
    let states: Vec<_> = Spans::of(&timeline)
        .states
        .iter()
        .map(|span| (span.state, span.from, span.to))
        .collect();
    let expected = [
        (State::Running, 0, 4_000),
        (State::Ready, 4_000, 5_000),
        (State::Running, 5_000, 7_000),
    ];
    assert_eq!(states, expected);
}

#[test]
fn hostile_names_stay_text() {
    let mut timeline = Timeline::new(HOSTILE);
    let site = timeline.site(HOSTILE);
    let by = Some(0);
    let (id, level) = (CoroutineId::from_u64(u64::MAX), Level::LEAST_URGENT);
    let coroutine = Coroutine {
        id,
        level,
        site,
        by,
    };
    for (at, step) in [Step::Spawned, Step::Ready, Step::Polled, Step::Exited]
        .into_iter()
        .enumerate()
    {
        timeline.add(at as u64 * 1_000, 0, EventKind::Coroutine(step, coroutine));
    }
    let json = chrome(&timeline);
    assert_balanced(&json, 1);
    let all = json["traceEvents"].as_array().unwrap();
    assert_eq!(all[0]["args"]["name"], HOSTILE);
    assert!(
        all.iter()
            .any(|entry| entry["ph"] == "B" && entry["name"] == HOSTILE)
    );
    let mut out = Vec::new();
    timeline.write_chrome(&mut out).unwrap();
    assert!(out.iter().all(|byte| *byte >= b' ' || *byte == b'\n'));
    assert_well_formed(&timeline.to_svg());
}

#[test]
fn an_empty_recording_is_a_file_and_a_picture() {
    let timeline = Timeline::new("nothing");
    assert_eq!(chrome(&timeline)["otherData"]["lost"], 0);
    assert_well_formed(&timeline.to_svg());
}

fn any_event() -> impl Strategy<Value = (u64, u32, EventKind)> {
    let step = prop_oneof![
        Just(Step::Spawned),
        Just(Step::Ready),
        Just(Step::Polled),
        Just(Step::Resumed),
        Just(Step::Yielded),
        Just(Step::Blocked),
        Just(Step::Suspended),
        (0..3usize).prop_map(|from| Step::Stolen { from }),
        Just(Step::Exited),
    ];
    let by = prop_oneof![Just(None), (0..3u32).prop_map(Some)];
    let coroutine =
        (step, 0..6u64, 0..64u8, 0..4u32, by).prop_map(|(step, id, level, site, by)| {
            let coroutine = Coroutine {
                id: CoroutineId::from_u64(id),
                level: Level::new(level).unwrap(),
                site,
                by,
            };
            EventKind::Coroutine(step, coroutine)
        });
    let kind = prop_oneof![
        8 => coroutine,
        1 => Just(EventKind::Parked),
        1 => Just(EventKind::Unparked),
        1 => (0..9u32).prop_map(EventKind::Arrived),
    ];
    (0..2_000_000u64, 0..3u32, kind)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn any_events_make_a_balanced_file_and_a_well_formed_picture(
        events in prop::collection::vec(any_event(), 0..300),
        is_sorted in any::<bool>(),
        lost in any::<u64>(),
    ) {
        let mut timeline = Timeline::new("any");
        timeline.lost = lost;
        let _ = (timeline.site("one"), timeline.site("two"));
        for (at, vcpu, kind) in events {
            timeline.add(at, vcpu, kind);
        }
        if is_sorted {
            timeline.sort();
        }
        assert_balanced(&chrome(&timeline), 3);
        assert_well_formed(&timeline.to_svg());
        for span in &Spans::of(&timeline).states {
            prop_assert!(span.from < span.to && span.to <= timeline.length);
        }
        let text = serde_json::to_string(&timeline).unwrap();
        let read: Timeline = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read.events, timeline.events);
    }
}

#[test]
fn impossible_vcpus_allocate_nothing() {
    let mut timeline = Timeline::new("liar");
    for (vcpu, by) in [(u32::MAX, Some(0)), (0, Some(u32::MAX)), (u32::MAX, None)] {
        let coroutine = coroutine(&mut timeline, 1, 1, by);
        timeline.add(1, vcpu, EventKind::Coroutine(Step::Ready, coroutine));
        timeline.add(
            0,
            vcpu,
            EventKind::Coroutine(Step::Stolen { from: usize::MAX }, coroutine),
        );
        timeline.add(2, vcpu, EventKind::Coroutine(Step::Polled, coroutine));
    }
    timeline.vcpus = u32::MAX;
    assert_balanced(&chrome(&timeline), 3);
    let svg = timeline.to_svg();
    assert_well_formed(&svg);
    assert!(svg.len() < 1 << 20);
}

#[test]
fn invalid_events_are_refused() {
    for row in [
        "[0,0,9,0,0,0,0,0]",
        "[0,0,1,0,0,64,0,0]",
        "[0,0,1]",
        "[]",
        "{}",
    ] {
        assert!(serde_json::from_str::<Event>(row).is_err(), "{row}");
    }
}
