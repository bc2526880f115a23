// Visits pages in Chromium as it is told by its argument, and prints what it saw.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import puppeteer from 'puppeteer-core';

const order = JSON.parse(process.argv[2]);
const axe = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

// As root, as in containers, Chromium has no sandbox; it visits nothing but what a test serves.
const browser = await puppeteer.launch({
  executablePath: order.chromium,
  timeout: order.patienceMs,
  protocolTimeout: 5 * order.patienceMs,
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--force-color-profile=srgb'],
});

async function visit(v) {
  const seen = { console: [], elsewhere: [], violations: [], value: null, wide: 0, loadMs: 0 };
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.setDefaultTimeout(order.patienceMs);
  const own = new URL(v.url).origin;
  page.on('console', (m) => seen.console.push(`${m.type()}: ${m.text()}`));
  page.on('pageerror', (e) => seen.console.push(`error: ${e.message}`));
  page.on('requestfailed', (r) => {
    // A stream of events, and a refresh, end when the page is left.
    if (r.failure().errorText !== 'net::ERR_ABORTED') seen.console.push(`failed: ${r.url()} ${r.failure().errorText}`);
  });
  page.on('response', (r) => { if (r.status() >= 400) seen.console.push(`status ${r.status()}: ${r.url()}`); });
  page.on('request', (r) => { if (!r.url().startsWith(own + '/')) seen.elsewhere.push(r.url()); });
  await page.setViewport({ width: v.width, height: v.height });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: v.dark ? 'dark' : 'light' }]);
  await page.setJavaScriptEnabled(!v.noScript);
  const began = Date.now();
  await page.goto(v.url, { waitUntil: 'load' });
  seen.loadMs = Date.now() - began;
  for (const key of v.keys) await page.keyboard.press(key);
  for (const expression of v.await) {
    const until = Date.now() + order.patienceMs;
    while (!(await page.evaluate(expression).catch(() => false))) {
      if (Date.now() > until) {
        const text = await page.evaluate('document.body.innerText');
        throw new Error(`${v.url}: never true: ${expression}\n${text}`);
      }
      await sleep(100);
    }
  }
  if (v.eval) seen.value = await page.evaluate(v.eval);
  seen.wide = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
  if (v.axe) {
    await page.evaluate(axe);
    const result = await page.evaluate(`axe.run(document, { resultTypes: ['violations'], runOnly: { type: 'tag',
      values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] } })`);
    for (const found of result.violations) {
      for (const node of found.nodes) {
        seen.violations.push(`${found.id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`);
      }
    }
  }
  if (v.shot) await page.screenshot({ path: v.shot, fullPage: v.whole });
  await context.close();
  return seen;
}

const all = [];
try {
  for (const v of order.visits) all.push(await visit(v));
  process.stdout.write(JSON.stringify(all));
} finally {
  await browser.close();
}
