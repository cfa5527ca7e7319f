use super::{Audio, FlowDefinition, Format, Geometry, Interlace, Video, parse_id};
use crate::Rational;
use proptest::prelude::*;
use serde_json::{Value, json};

fn camera() -> Value {
    FlowDefinition::video("camera", 1920, 1080, Rational::new(30000, 1001)).unwrap().to_value()
}

fn microphone() -> Value {
    FlowDefinition::audio("microphone", 2, Rational::new(48000, 1)).unwrap().to_value()
}

/// The definition with one field set, or removed by a null.
fn with(mut definition: Value, name: &str, value: Value) -> Result<FlowDefinition, crate::Error> {
    let object = definition.as_object_mut().unwrap();
    if value.is_null() {
        object.remove(name);
    } else {
        object.insert(name.into(), value);
    }
    FlowDefinition::parse(&definition.to_string())
}

#[test]
fn what_the_sdk_refuses_is_refused() {
    let hint = |hints: Value| json!({ "urn:x-nmos:tag:grouphint/v1.0": hints });
    for (name, value) in [
        ("grain_rate", Value::Null),
        ("grain_rate", json!(25)),
        ("grain_rate", json!({"denominator": 1})),
        ("grain_rate", json!({"numerator": "25"})),
        ("grain_rate", json!({"numerator": 0})),
        ("grain_rate", json!({"numerator": -25})),
        ("grain_rate", json!({"numerator": 25, "denominator": 0})),
        ("id", Value::Null),
        ("id", json!("camera one")),
        ("id", json!(7)),
        ("media_type", Value::Null),
        ("media_type", json!("video/raw")),
        ("format", json!("urn:x-nmos:format:mux")),
        ("format", json!("video")),
        ("label", Value::Null),
        ("label", json!("")),
        ("tags", Value::Null),
        ("tags", json!({})),
        ("tags", hint(json!([]))),
        ("tags", hint(json!("a:b"))),
        ("tags", hint(json!(["a"]))),
        ("tags", hint(json!(["a:"]))),
        ("tags", hint(json!([":b"]))),
        ("tags", hint(json!(["a:b:room"]))),
        ("tags", hint(json!(["a:b:device:c"]))),
        ("tags", hint(json!(["a:b", 5]))),
        ("frame_width", json!(1)),
        ("frame_width", json!(7681)),
        ("frame_width", json!("1920")),
        ("frame_height", json!(0)),
        ("frame_height", json!(4321)),
        ("frame_height", json!(-1)),
        ("interlace_mode", json!("interlaced")),
        ("interlace_mode", json!(1)),
    ] {
        let shown = value.to_string();
        assert!(with(camera(), name, value).is_err(), "{name} {shown}");
    }
    for (name, value) in [
        ("bit_depth", Value::Null),
        ("bit_depth", json!(24)),
        ("sample_rate", Value::Null),
        ("channel_count", json!(0)),
        ("channel_count", json!(1.5)),
        ("channel_count", json!("2")),
    ] {
        let shown = value.to_string();
        assert!(with(microphone(), name, value).is_err(), "{name} {shown}");
    }
    for text in ["", "{", "[]", "7", "{\"id\":}", "null"] {
        assert!(FlowDefinition::parse(text).is_err(), "{text}");
    }
}

#[test]
fn what_the_sdk_accepts_is_accepted() {
    assert!(with(camera(), "interlace_mode", Value::Null).is_ok());
    assert!(with(camera(), "components", Value::Null).is_ok());
    assert!(
        with(camera(), "tags", json!({"urn:x-nmos:tag:grouphint/v1.0": ["a:b:device", "c:d:node"]})).is_ok()
    );
    assert!(with(camera(), "id", json!("{5FBEC3B11B0F417D-90598B94A47197ED}")).is_ok());
    assert!(FlowDefinition::parse(&format!(" {} trailing", camera())).is_ok());
    assert!(with(microphone(), "media_type", json!("audio/L24")).is_ok());
    let mono = with(microphone(), "channel_count", Value::Null).unwrap();
    assert_eq!(mono.format, Format::Audio(Audio { rate: Rational::new(48000, 1), channels: 1, word: 4 }));
    let double = with(camera(), "grain_rate", json!({"numerator": 60000, "denominator": 2002})).unwrap();
    assert!(matches!(
        double.format,
        Format::Video(Video { rate: Rational { numerator: 30000, denominator: 1001 }, .. })
    ));
}

#[test]
fn interlaced_grains_are_fields() {
    let interlaced = |rate, height| {
        let mut definition = FlowDefinition::video("camera", 1920, height, rate).unwrap();
        if let Format::Video(video) = &mut definition.format {
            video.interlace = Interlace::TopFirst;
        }
        FlowDefinition::parse(&definition.to_json())
    };
    assert!(interlaced(Rational::new(50, 1), 1080).is_err());
    assert!(interlaced(Rational::new(25, 1), 1081).is_err());
    let geometry = interlaced(Rational::new(25, 1), 1080).unwrap().geometry();
    let slice_sizes = [5120, 0, 0, 0];
    assert_eq!(
        geometry,
        Geometry::Grains { rate: Rational::new(50, 1), payload: 2_764_800, slices: 540, slice_sizes }
    );
}

#[test]
fn memory_is_as_the_sdk_computes_it() {
    let payload = |width, height, alpha| {
        let mut definition = FlowDefinition::video("camera", width, height, Rational::new(50, 1)).unwrap();
        if let Format::Video(video) = &mut definition.format {
            video.alpha = alpha;
        }
        match definition.geometry() {
            Geometry::Grains { payload, slices, slice_sizes, .. } => (payload, slices, slice_sizes),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(payload(1920, 1080, false), (5_529_600, 1080, [5120, 0, 0, 0]));
    assert_eq!(payload(1920, 1080, true), (8_294_400, 1080, [5120, 2560, 0, 0]));
    assert_eq!(payload(1280, 720, false).0, 2_488_320);
    assert_eq!(payload(2, 1, true), (132, 1, [128, 4, 0, 0]));
    let data = FlowDefinition::data("captions", Rational::new(30000, 1001)).unwrap().geometry();
    assert!(matches!(data, Geometry::Grains { payload: 4096, slices: 4096, slice_sizes: [1, 0, 0, 0], .. }));
}

#[test]
fn ids_are_read_as_the_sdk_reads_them() {
    let id = parse_id("5fbec3b1-1b0f-417d-9059-8b94a47197ed").unwrap();
    assert_eq!(parse_id("{5FBEC3B1-1B0F-417D-9059-8B94A47197ED}"), Some(id));
    assert_eq!(parse_id("-5fbec3b11b0f417d90598b94a47197-ed"), Some(id));
    for text in [
        "",
        "{5fbec3b1-1b0f-417d-9059-8b94a47197ed",
        "5fbec3b1",
        "5fbec3b1-1b0f-417d-9059-8b94a47197ed0",
        "é",
    ] {
        assert_eq!(parse_id(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        label in "[a-zA-Z\"\\\\ ]{1,20}", kind in 0..3, width in 2_u32..=7680, height in 1_u32..=4320,
        rate in 1_i64..200_000, channels in 1_u32..500, alpha: bool,
    ) {
        let rate = Rational::new(rate, 1001);
        let mut definition = match kind {
            0 => FlowDefinition::video(&label, width, height, rate),
            1 => FlowDefinition::audio(&label, channels, rate),
            _ => FlowDefinition::data(&label, rate),
        }.unwrap();
        if let Format::Video(video) = &mut definition.format {
            video.alpha = alpha;
        }
        prop_assert_eq!(&FlowDefinition::parse(&definition.to_json()).unwrap(), &definition);
        let text = serde_json::to_string(&definition).unwrap();
        prop_assert_eq!(serde_json::from_str::<FlowDefinition>(&text).unwrap(), definition);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,200}") {
        let _ = FlowDefinition::parse(&text);
    }
}
