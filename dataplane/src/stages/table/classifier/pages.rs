//! Arrays that are copied page by page: a copy shares all pages, and a change copies the one that it is in.

use std::sync::Arc;

/// An array that grows. A page has `PAGE` elements.
#[derive(Clone, Debug)]
pub(super) struct Pages<T, const PAGE: usize> {
    pages: Vec<Arc<[T; PAGE]>>,
    len: usize,
}

impl<T, const PAGE: usize> Default for Pages<T, PAGE> {
    fn default() -> Self {
        Self { pages: Vec::new(), len: 0 }
    }
}

impl<T: Clone, const PAGE: usize> Pages<T, PAGE> {
    /// Adds so many elements, all in one page, and says where they begin.
    pub(super) fn grow(&mut self, count: usize, element: &T) -> usize {
        if self.len % PAGE + count > PAGE {
            self.len = self.len.next_multiple_of(PAGE);
        }
        let first = self.len;
        self.len += count;
        if self.pages.len() * PAGE < self.len {
            let page: Arc<[T]> = std::iter::repeat_n(element.clone(), PAGE).collect();
            self.pages.extend(page.try_into().ok());
        }
        first
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        Some(&self.pages.get(at / PAGE)?[at % PAGE])
    }

    /// From there on those of the same page.
    #[inline]
    pub(super) fn from(&self, at: usize) -> &[T] {
        self.pages.get(at / PAGE).map_or(&[], |page| &page[at % PAGE..])
    }

    /// For a change, which is not seen in copies.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        Some(&mut Arc::make_mut(self.pages.get_mut(at / PAGE)?)[at % PAGE])
    }

    /// What it takes, whether shared or not.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * PAGE * size_of::<T>()
    }

    /// How many pages are not those of another.
    #[cfg(test)]
    pub(super) fn differing(&self, other: &Self) -> usize {
        let same = |(ours, theirs): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(ours, theirs);
        self.pages.len() - self.pages.iter().zip(&other.pages).filter(|pair| same(*pair)).count()
    }
}
