// Pages link to other files of the repository as they lie there, so that the links work where the repository is read.
// The built book has no such files, so here the links that lead out of it go to the repository on the web; mdBook has made
// .html of .md in them.
const repository = "https://github.com/devbay/devbay/blob/main/docs/guide/src/";
// How many folders deep the page lies, and how many a link goes up.
const ups = (path) => path.match(/^(\.\.\/)*/)[0].length / 3;
const depth = ups(path_to_root);
for (const link of document.querySelectorAll("main a[href^='../']")) {
  const target = link.getAttribute("href");
  if (ups(target) > depth) {
    const path = target.slice(3 * depth).replace(/\.html(?=#|$)/, ".md");
    link.href = new URL(path, repository).href;
  }
}
