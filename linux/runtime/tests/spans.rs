//! Tests of the spans of coroutines.
//!
//! This file has one test, because threads of other tests would disable the span. While `tracing`
//! has a single subscriber, a span is disabled for all threads if the first thread that reaches the
//! span's call site lacks the subscriber.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use upshift::{Level, Runtime};

/// A layer that records each coroutine's span: its fields as text, and the number of entries.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<HashMap<u64, (String, u32)>>>);

struct Fields<'a>(&'a mut String);

impl tracing::field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Record {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        id: &tracing::Id,
        _: Context<'_, S>,
    ) {
        if attributes.metadata().target() == "upshift::coroutine" {
            let mut spans = self.0.lock().unwrap();
            let entry = spans.entry(id.into_u64()).or_default();
            attributes.record(&mut Fields(&mut entry.0));
        }
    }

    fn on_record(&self, id: &tracing::Id, values: &tracing::span::Record<'_>, _: Context<'_, S>) {
        if let Some(entry) = self.0.lock().unwrap().get_mut(&id.into_u64()) {
            values.record(&mut Fields(&mut entry.0));
        }
    }

    fn on_enter(&self, id: &tracing::Id, _: Context<'_, S>) {
        if let Some(entry) = self.0.lock().unwrap().get_mut(&id.into_u64()) {
            entry.1 += 1;
        }
    }
}

#[test]
fn a_coroutine_has_a_span_if_a_subscriber_listens() {
    without_a_subscriber_there_is_no_span();
    a_span_has_id_level_and_location();
    without_a_subscriber_there_is_no_span();
    a_panicking_subscriber_does_not_prevent_the_drop_of_a_future();
}

fn without_a_subscriber_there_is_no_span() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        upshift::spawn(
            async { assert!(tracing::Span::current().is_disabled()) },
            Level::DEFAULT,
        )
        .await
        .unwrap();
    });
}

/// A subscriber that panics when a span is entered, if the flag is set.
#[derive(Clone, Default)]
struct PanickingSubscriber(Arc<AtomicBool>);

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::Id) {
        assert!(!self.0.load(SeqCst), "a subscriber that panics");
    }
    fn exit(&self, _: &tracing::Id) {}
}

/// A pinned value must be dropped before its memory is reused, because pointers to it may exist.
fn a_panicking_subscriber_does_not_prevent_the_drop_of_a_future() {
    struct SetOnDrop(Arc<AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let (panics, is_dropped) = (
        PanickingSubscriber::default(),
        Arc::new(AtomicBool::new(false)),
    );
    tracing::subscriber::with_default(panics.clone(), || {
        let runtime = Runtime::builder().vcpus(1).build().unwrap();
        let value = SetOnDrop(is_dropped.clone());
        runtime.block_on(async {
            let waiting = async move {
                std::future::pending::<()>().await;
                drop(value);
            };
            let waiting = upshift::spawn(waiting, Level::DEFAULT);
            upshift::yield_now().await;
            panics.0.store(true, SeqCst);
            waiting.cancel();
            assert!(waiting.await.unwrap_err().is_panic());
            assert!(is_dropped.load(SeqCst));
            panics.0.store(false, SeqCst);
        });
    });
}

fn a_span_has_id_level_and_location() {
    let record = Record::default();
    let subscriber = tracing_subscriber::registry().with(record.clone());
    let id = tracing::subscriber::with_default(subscriber, || {
        let runtime = Runtime::builder().vcpus(1).build().unwrap();
        runtime.block_on(async {
            let handle = upshift::spawn(
                async {
                    upshift::yield_now().await;
                    upshift::reprio(upshift::get_cid().unwrap(), Level::at::<6>()).unwrap();
                    upshift::yield_now().await;
                },
                Level::at::<5>(),
            );
            let id = handle.id();
            handle.await.unwrap();
            id
        })
    });
    let spans = record.0.lock().unwrap();
    assert_eq!(spans.len(), 1);
    let (fields, entries) = spans.values().next().unwrap();
    assert!(fields.contains(&format!("id={id} ")), "{fields}");
    assert!(
        fields.contains("level=5 ") && fields.contains("level=6 "),
        "{fields}"
    );
    assert!(fields.contains("tests/spans.rs:"), "{fields}");
    // The span is entered for three polls and for the drop of the future.
    assert_eq!(*entries, 4);
}
