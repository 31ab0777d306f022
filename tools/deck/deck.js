// A step forward or back with the keys of any presenter; the address names the slide.
const slides = [...document.querySelectorAll('section')], number = document.querySelector('output')
const at = () => slides.findIndex(slide => slide.getBoundingClientRect().bottom > innerHeight / 2)
const count = () => {
  number.value = `${at() + 1} of ${slides.length}`
  history.replaceState(null, '', `#${at() + 1}`)
}
const show = k => {
  slides[Math.max(0, Math.min(slides.length - 1, k))].scrollIntoView({ behavior: 'instant' })
  count()
}
const STEPS = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, ' ': 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 }
addEventListener('keydown', event => {
  const ends = { Home: 0, End: slides.length - 1 }
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in STEPS || event.key in ends)) return
  event.preventDefault()
  show(event.key in ends ? ends[event.key] : at() + (event.key === ' ' && event.shiftKey ? -1 : STEPS[event.key]))
})
addEventListener('scroll', count)
show(Number(location.hash.slice(1) || 1) - 1)
