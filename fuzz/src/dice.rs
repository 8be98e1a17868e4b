//! Choices out of the fuzzer's bytes. When they are used up, every choice is the first one.

/// The bytes that are left.
pub(crate) struct Dice<'a>(&'a [u8]);

impl<'a> Dice<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// One of so many.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        if count > 256 {
            return usize::from(u16::from_be_bytes(self.array())) % count;
        }
        usize::from(self.byte()) % count.max(1)
    }

    pub(crate) fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.array())
    }

    pub(crate) fn i64(&mut self) -> i64 {
        i64::from_be_bytes(self.array())
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// Some of the bytes, as many as the next one says.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let count = self.below(256).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let count = N.min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        array[..count].copy_from_slice(bytes);
        self.0 = rest;
        array
    }
}
