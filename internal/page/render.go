package page

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/reaper-ttl/reaper/inspect"
	"github.com/reaper-ttl/reaper/internal/page/draw"
)

//go:embed templates
var sources embed.FS

var functions = template.FuncMap{
	"text":    draw.Visible,
	"count":   draw.Count,
	"instant": draw.Instant,
	"minute":  draw.Minute,
	"machine": draw.Machine,
	"age":     draw.Age,
	"plural":  draw.Plural,

	"number":    func(n int) string { return draw.Count(int64(n)) },
	"perSecond": func(r *float64) string { return draw.Rate(*r, false) },
}

// pages has a template for each page, with the frame around it.
var pages = func() map[string]*template.Template {
	all := map[string]*template.Template{}
	for _, name := range []string{"overview", "target", "history", "doctor", "explain", "plan",
		"failure"} {
		all[name] = template.Must(template.New("frame.html").Funcs(functions).ParseFS(sources,
			"templates/frame.html", "templates/parts.html", "templates/"+name+".html"))
	}
	return all
}()

// A frame is what is around each page.
type frame struct {
	Title   string
	Here    string // which of the links leads here
	Root    string // from this page to the first one: every link is relative
	JSON    string // the document of this page
	Events  string // where its events come from; empty if it has none
	Soon    bool   // something is being read: come back soon
	Refresh int    // without script, after so many seconds; 0: not
	Toggle  string // the link that turns that on or off
	Server  *Server
	Now     time.Time
	Content any
}

// root returns the way from the page of a request to the first one.
func root(path string) string {
	return "./" + strings.Repeat("../", max(0, strings.Count(path, "/")-1))
}

const (
	// refreshEvery is after how many seconds a page without script is read again.
	refreshEvery = 15
	// refreshSoon is likewise, while something is being read.
	refreshSoon = 2
)

// show answers with a page.
func (s *Server) show(w http.ResponseWriter, r *http.Request, code int, name string, f frame) {
	f.Root, f.Server, f.Now = root(r.URL.Path), s, s.Now().UTC()
	query := r.URL.Query()
	f.Refresh = refreshEvery
	if f.Soon {
		f.Refresh = refreshSoon
	}
	if f.Events == "" && !f.Soon || query.Get("refresh") == "off" {
		f.Refresh = 0
	}
	if query.Get("refresh") == "off" {
		query.Del("refresh")
	} else {
		query.Set("refresh", "off")
	}
	f.Toggle = "?" + query.Encode()
	var b bytes.Buffer
	if err := pages[name].Execute(&b, f); err != nil {
		s.Log.ErrorContext(r.Context(), "cannot show a page", "page", name, "error", err)
		http.Error(w, "internal error: the log has it", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	// Templates make each text from elsewhere visible; none that was forgotten gets through.
	_, _ = w.Write(draw.VisibleLines(b.Bytes())) // the viewer may be gone
}

// answer answers with a document.
func (s *Server) answer(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(document) // the viewer may be gone
}

// answerOnce answers with a document once it is known; until then it says why it is not.
func (s *Server) answerOnce(w http.ResponseWriter, r *http.Request, known bool, document any, why string) {
	if !known {
		w.Header().Set("Retry-After", "10")
		s.fail(w, r, http.StatusServiceUnavailable, why+": ask again soon")
		return
	}
	s.answer(w, document)
}

// fail answers that there is nothing to show, and why.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	if wantsJSON(r) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": why})
		return
	}
	s.show(w, r, code, "failure", frame{Title: http.StatusText(code), Content: why})
}

// A freshness says how old a copy is, and since when the store has not answered.
type freshness struct {
	Read  *time.Time // nil if it was never read
	Since *time.Time // since when reads fail or are not answered; nil if they are not
	Why   string     // the last read failed
}

// slow is how long a read may take before the page says that the store has not answered.
const slow = 2 * time.Second

func (s *Server) freshnessOf(at, asked time.Time, err error) (f freshness) {
	if !at.IsZero() {
		f.Read = &at
	}
	if !asked.IsZero() && (err != nil || s.Now().Sub(asked) > slow) {
		f.Since = &asked
	}
	if err != nil {
		f.Why = err.Error()
		if !s.IDs {
			f.Why = draw.WithoutIDs(f.Why)
		}
	}
	return f
}

// A verdict is how a status sums up, for people.
type verdict struct{ Word, Class, Why string }

// verdictOf returns the verdict of a status; of one that was never read it is not known.
func verdictOf(c copied[look]) verdict {
	if !c.Known() {
		return verdict{string(inspect.Unknown), "unknown", "not read yet"}
	}
	st := c.Value.Status
	class := strings.ToLower(strings.ReplaceAll(string(st.Verdict), " ", "-"))
	return verdict{string(st.Verdict), class, st.Why}
}
