//! Every operation on every type against a naive model, written from the man page with plain arithmetic.

use ofi_api::{AtomicKind, Datatype, FiOp};
use proptest::prelude::*;

use super::long_double::LongDouble;
use super::*;

/// What the model knows of a type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Integer { signed: bool },
    Real,
    Complex,
}

fn class(datatype: Datatype) -> Class {
    use Datatype as D;
    match datatype {
        D::Int8 | D::Int16 | D::Int32 | D::Int64 | D::Int128 => Class::Integer { signed: true },
        D::Uint8 | D::Uint16 | D::Uint32 | D::Uint64 | D::Uint128 => Class::Integer { signed: false },
        D::FloatComplex | D::DoubleComplex | D::LongDoubleComplex => Class::Complex,
        _ => Class::Real,
    }
}

/// A value: integers in full, the others as double precision. Operands are small integers or halves, which every type
/// holds exactly, so that the model needs no rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Integer(i128),
    Complex(f64, f64),
}

fn write(datatype: Datatype, value: Value) -> Vec<u8> {
    use Datatype as D;
    let part = |x: f64| -> Vec<u8> {
        match datatype {
            D::Float | D::FloatComplex => (x as f32).to_ne_bytes().to_vec(),
            D::Double | D::DoubleComplex => x.to_ne_bytes().to_vec(),
            D::Float16 => F16::nearest(x as f32).0.to_ne_bytes().to_vec(),
            D::Bfloat16 => Bf16::nearest(x as f32).0.to_ne_bytes().to_vec(),
            D::Float8E4m3 => vec![E4m3::nearest(x as f32).0],
            D::Float8E5m2 => vec![E5m2::nearest(x as f32).0],
            _ => LongDouble::from_f64(x).0.to_ne_bytes().to_vec(),
        }
    };
    match (value, class(datatype)) {
        (Value::Integer(x), _) => x.to_le_bytes()[..datatype.size()].to_vec(),
        (Value::Complex(re, im), Class::Complex) => [part(re), part(im)].concat(),
        (Value::Complex(re, _), _) => part(re),
    }
}

/// Cuts an integer to its type.
fn wrap(datatype: Datatype, signed: bool, x: i128) -> i128 {
    let bits = 8 * datatype.size() as u32;
    let shift = 128 - bits;
    if signed { x << shift >> shift } else { ((x as u128) << shift >> shift) as i128 }
}

fn less(signed: bool, a: i128, b: i128) -> bool {
    if signed { a < b } else { (a as u128) < b as u128 }
}

/// The man page's formulas. `None`: the combination has no meaning.
fn model(op: FiOp, datatype: Datatype, target: Value, operand: Value, compare: Value) -> Option<Value> {
    let is_true = |value| !matches!(value, Value::Integer(0) | Value::Complex(0.0, 0.0));
    let truth = |value: bool| match target {
        Value::Integer(_) => Value::Integer(value.into()),
        Value::Complex(..) => Value::Complex(u8::from(value).into(), 0.0),
    };
    let (a, b) = (is_true(target), is_true(operand));
    let simple = match op {
        FiOp::Lor => truth(a || b),
        FiOp::Land => truth(a && b),
        FiOp::Lxor => truth((a && !b) || (!a && b)),
        FiOp::AtomicRead => target,
        FiOp::AtomicWrite => operand,
        FiOp::Cswap if compare == target => operand,
        FiOp::CswapNe if compare != target => operand,
        FiOp::Cswap | FiOp::CswapNe => target,
        _ => {
            return match (target, operand, compare, class(datatype)) {
                (Value::Integer(t), Value::Integer(o), Value::Integer(c), Class::Integer { signed }) => {
                    integers(op, signed, t, o, c).map(|x| Value::Integer(wrap(datatype, signed, x)))
                }
                (Value::Complex(tr, ti), Value::Complex(or, oi), Value::Complex(c, _), class) => match op {
                    FiOp::Sum => Some(Value::Complex(tr + or, ti + oi)),
                    FiOp::Diff => Some(Value::Complex(tr - or, ti - oi)),
                    FiOp::Prod => Some(Value::Complex(tr * or - ti * oi, tr * oi + ti * or)),
                    _ if class == Class::Complex => None,
                    FiOp::Min => Some(if or < tr { operand } else { target }),
                    FiOp::Max => Some(if or > tr { operand } else { target }),
                    FiOp::CswapLe => Some(if c <= tr { operand } else { target }),
                    FiOp::CswapLt => Some(if c < tr { operand } else { target }),
                    FiOp::CswapGe => Some(if c >= tr { operand } else { target }),
                    FiOp::CswapGt => Some(if c > tr { operand } else { target }),
                    _ => None,
                },
                _ => None,
            };
        }
    };
    Some(simple)
}

fn integers(op: FiOp, signed: bool, t: i128, o: i128, c: i128) -> Option<i128> {
    let swap = |holds| if holds { o } else { t };
    Some(match op {
        FiOp::Sum => t.wrapping_add(o),
        FiOp::Diff => t.wrapping_sub(o),
        FiOp::Prod => t.wrapping_mul(o),
        FiOp::Min => swap(less(signed, o, t)),
        FiOp::Max => swap(less(signed, t, o)),
        FiOp::Bor => t | o,
        FiOp::Band => t & o,
        FiOp::Bxor => t ^ o,
        FiOp::CswapLe => swap(!less(signed, t, c)),
        FiOp::CswapLt => swap(less(signed, c, t)),
        FiOp::CswapGe => swap(!less(signed, c, t)),
        FiOp::CswapGt => swap(less(signed, t, c)),
        FiOp::Mswap => (o & c) | (t & !c),
        _ => return None,
    })
}

fn kind_of(op: FiOp) -> AtomicKind {
    if (FiOp::Cswap as u32..=FiOp::Mswap as u32).contains(&op.as_c()) {
        AtomicKind::Compare
    } else {
        AtomicKind::Fetch
    }
}

fn value(datatype: Datatype, seed: (i128, i8, i8)) -> Value {
    match class(datatype) {
        Class::Integer { signed } => Value::Integer(wrap(datatype, signed, seed.0)),
        // Products and sums of these need at most 4 bits, as FP8 E4M3 has; E5M2's 3 hold single ones.
        Class::Real => Value::Complex(f64::from(seed.1 % 3), 0.0),
        Class::Complex => Value::Complex(f64::from(seed.1) / 2.0, f64::from(seed.2) / 2.0),
    }
}

fn meaning(datatype: Datatype, bytes: &[u8]) -> Vec<u8> {
    match datatype {
        // The padding of a long double means nothing; zeroes of either sign are equal.
        Datatype::LongDouble | Datatype::LongDoubleComplex => {
            bytes.chunks(16).flat_map(|part| part[..10].to_vec()).collect()
        }
        _ => bytes.to_vec(),
    }
}

/// An aligned block, of which a test uses the bytes from `skip` on.
#[repr(align(64))]
struct Block([u8; 128]);

fn check(
    op: FiOp,
    datatype: Datatype,
    skip: usize,
    seeds: &[[(i128, i8, i8); 3]],
) -> Result<(), TestCaseError> {
    let size = datatype.size();
    let mut block = Block([0xA5; 128]);
    let (mut operands, mut comparands, mut expected, mut old) = (vec![], vec![], vec![], vec![]);
    let mut valid = true;
    for (index, seeds) in seeds.iter().enumerate() {
        let [target, operand, compare] = seeds.map(|seed| value(datatype, seed));
        let bytes = write(datatype, target);
        block.0[skip + index * size..][..size].copy_from_slice(&bytes);
        old.extend(bytes);
        operands.extend(write(datatype, operand));
        comparands.extend(write(datatype, compare));
        match model(op, datatype, target, operand, compare) {
            Some(value) => expected.extend(write(datatype, value)),
            None => valid = false,
        }
    }
    let found = Executor::find(kind_of(op), op, datatype);
    prop_assert_eq!(found.is_ok(), valid, "{} on {}", op, datatype);
    let Ok(executor) = found else { return Ok(()) };
    prop_assert_eq!(Executor::from_wire(executor.to_wire()).unwrap().to_wire(), executor.to_wire());
    let mut results = vec![0xEE; old.len() + 1];
    let target = block.0.as_mut_ptr().wrapping_add(skip);
    // SAFETY: all have room for that many elements, and nothing else uses them.
    unsafe {
        let to = results.as_mut_ptr();
        executor.execute(target, operands.as_ptr(), comparands.as_ptr(), to, seeds.len());
    }
    let now = &block.0[skip..skip + old.len()];
    // A negative zero is as good as a positive one.
    let no_sign = |bytes: Vec<u8>| -> Vec<Vec<u8>> {
        let part = size / if class(datatype) == Class::Complex { 2 } else { 1 };
        let part = if part == 16 && !matches!(class(datatype), Class::Integer { .. }) { 10 } else { part };
        bytes
            .chunks(part)
            .map(|part| match part.split_last() {
                Some((0x80, rest)) if rest.iter().all(|&byte| byte == 0) => vec![0; part.len()],
                _ => part.to_vec(),
            })
            .collect()
    };
    let sign_matters = matches!(class(datatype), Class::Integer { .. });
    let (now, expected) = (meaning(datatype, now), meaning(datatype, &expected));
    if sign_matters {
        prop_assert_eq!(now, expected, "{} on {}", op, datatype);
    } else {
        prop_assert_eq!(no_sign(now), no_sign(expected), "{} on {}", op, datatype);
    }
    prop_assert_eq!(&results[..old.len()], &old[..], "{} on {}", op, datatype);
    prop_assert_eq!(results[old.len()], 0xEE);
    prop_assert!(block.0[..skip].iter().chain(&block.0[skip + old.len()..]).all(|&byte| byte == 0xA5));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_on_every_type_does_what_the_model_says(
        seeds in prop::collection::vec(prop::array::uniform3((
            prop_oneof![-3i128..4, any::<i128>(), any::<i8>().prop_map(i128::from)],
            any::<i8>(), any::<i8>(),
        )), 1..3),
        skip in prop::sample::select(vec![0usize, 32, 1, 4, 8]),
    ) {
        for &op in FiOp::VALUES {
            for &datatype in Datatype::VALUES {
                if datatype != Datatype::Void && op != FiOp::Noop {
                    check(op, datatype, skip, &seeds)?;
                }
            }
        }
    }
}

#[test]
fn only_real_operations_have_executors() {
    for kind in AtomicKind::ALL {
        assert!(Executor::find(kind, FiOp::Noop, Datatype::Int8).is_err());
        assert!(Executor::find(kind, FiOp::Sum, Datatype::Void).is_err());
    }
    assert!(Executor::find(AtomicKind::Base, FiOp::AtomicRead, Datatype::Int8).is_err());
    assert!(Executor::find(AtomicKind::Base, FiOp::Cswap, Datatype::Int8).is_err());
    assert!(Executor::find(AtomicKind::Fetch, FiOp::Mswap, Datatype::Int8).is_err());
    assert!(Executor::find(AtomicKind::Compare, FiOp::Sum, Datatype::Int8).is_err());
    let error = Executor::find(AtomicKind::Base, FiOp::Bor, Datatype::Double).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP);
    assert!(error.to_string().contains("FI_BOR on FI_DOUBLE"), "{error}");
}

#[test]
fn no_word_of_a_peer_makes_trouble() {
    for word in 0..=u16::MAX {
        if let Some(executor) = Executor::from_wire(word) {
            assert_eq!(executor.to_wire(), word);
        }
    }
}

#[test]
fn nan_is_not_swapped_in_by_order_and_never_equal() {
    for datatype in [Datatype::Float, Datatype::Double, Datatype::LongDouble, Datatype::Float16] {
        let nan = write(datatype, Value::Complex(f64::NAN, 0.0));
        let one = write(datatype, Value::Complex(1.0, 0.0));
        for (op, swaps) in
            [(FiOp::Cswap, false), (FiOp::CswapNe, true), (FiOp::CswapLe, false), (FiOp::CswapGt, false)]
        {
            let mut block = Block([0; 128]);
            block.0[..nan.len()].copy_from_slice(&nan);
            let executor = Executor::find(AtomicKind::Compare, op, datatype).unwrap();
            // SAFETY: all have an element.
            unsafe {
                executor.execute(block.0.as_mut_ptr(), one.as_ptr(), nan.as_ptr(), std::ptr::null_mut(), 1);
            }
            assert_eq!(meaning(datatype, &block.0[..nan.len()]) == meaning(datatype, &one), swaps, "{op}");
        }
        for op in [FiOp::Min, FiOp::Max] {
            let mut block = Block([0; 128]);
            block.0[..one.len()].copy_from_slice(&one);
            let executor = Executor::find(AtomicKind::Base, op, datatype).unwrap();
            let null = std::ptr::null_mut();
            // SAFETY: as above.
            unsafe { executor.execute(block.0.as_mut_ptr(), nan.as_ptr(), std::ptr::null(), null, 1) };
            assert_eq!(block.0[..one.len()], one[..], "{op}");
        }
    }
}

#[test]
fn a_long_double_keeps_all_its_digits() {
    // 1 + 2^-63 is no double.
    let tiny = LongDouble((0x3FFF - 63) << 64 | 1 << 63);
    let sum = number::Number::add(LongDouble::from_f64(1.0), tiny);
    assert_eq!(sum.0, 0x3FFF << 64 | 1 << 63 | 1);
    assert!(sum > LongDouble::from_f64(1.0) && sum != LongDouble::from_f64(1.0));
    assert_eq!(number::Number::sub(sum, LongDouble::from_f64(1.0)).0, tiny.0);
}

/// Threads that add to the same elements lose nothing, whichever way it is done.
#[test]
fn concurrent_sums_add_up() {
    const THREADS: usize = 4;
    const EACH: usize = 2_000;
    for (datatype, skip) in [
        (Datatype::Uint64, 0),
        (Datatype::Uint64, 4),
        (Datatype::Int8, 0),
        (Datatype::Double, 0),
        (Datatype::Uint128, 0),
        (Datatype::Uint128, 8),
        (Datatype::DoubleComplex, 0),
        (Datatype::LongDoubleComplex, 0),
    ] {
        let (one, sum) = match class(datatype) {
            Class::Integer { signed } => {
                let all = wrap(datatype, signed, (THREADS * EACH) as i128);
                (Value::Integer(1), Value::Integer(all))
            }
            _ => (
                Value::Complex(1.0, 2.0),
                Value::Complex((THREADS * EACH) as f64, (2 * THREADS * EACH) as f64),
            ),
        };
        let executor = Executor::find(AtomicKind::Base, FiOp::Sum, datatype).unwrap();
        let mut block = Block([0; 128]);
        let target = block.0.as_mut_ptr().wrapping_add(skip).expose_provenance();
        let one = write(datatype, one);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let target = std::ptr::with_exposed_provenance_mut(target);
                        // SAFETY: one element, which all change through the executor.
                        unsafe {
                            executor.execute(target, one.as_ptr(), std::ptr::null(), std::ptr::null_mut(), 1);
                        }
                    }
                });
            }
        });
        let found = meaning(datatype, &block.0[skip..skip + datatype.size()]);
        assert_eq!(found, meaning(datatype, &write(datatype, sum)), "{datatype} at {skip}");
    }
}
