package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dpb "cloud.google.com/go/datastore/apiv1/datastorepb"
	fpb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/internal/emulator"
)

// A fakeCloud stands between a process and an emulator: the process has credentials, calls *.googleapis.com through
// a proxy, and does not know that there is an emulator. Calls of data go to the emulator, except for what a fault
// changes. Calls of the administration, which an emulator does not have, are answered from the fields below.
type fakeCloud struct {
	t       *testing.T
	mode    emulator.Mode
	project string
	dir     string // with the certificate and the credentials

	proxy *httptest.Server // it takes CONNECT
	front *httptest.Server // all of googleapis.com, with TLS
	data  *httputil.ReverseProxy

	mu        sync.Mutex
	databases map[string]fakeDatabase // by id
	fields    []*fakeField
	lacking   []string                                       // permissions that the credentials do not have
	isDenied  bool                                           // the credentials have no role at all
	refuse    func(method string, request []byte) codes.Code // nil, or what a call of data fails with
	message   string                                         // of that failure
	offset    time.Duration                                  // of the clock of the store
	delay     time.Duration                                  // of lookups
	listed    map[string][]string                            // what queries of __kind__ and __namespace__ return
}

// A fakeDatabase is what the administration says of a database.
type fakeDatabase map[string]string

// A fakeField is a field with indexes of its own, or with a TTL policy.
type fakeField struct {
	kind, name string
	ttl        bool
	own        bool
	orders     []string // of its own indexes of a collection
}

// newFakeCloud returns a cloud with one database, in which nothing is wrong.
func newFakeCloud(t *testing.T, e *emulator.Emulator, mode emulator.Mode, project, dir string) *fakeCloud {
	t.Helper()
	c := &fakeCloud{t: t, mode: mode, project: project, dir: dir}
	c.databases = map[string]fakeDatabase{"(default)": c.healthyDatabase()}
	plain := &http.Transport{Protocols: new(http.Protocols)}
	plain.Protocols.SetUnencryptedHTTP2(true)
	c.data = &httputil.ReverseProxy{Transport: plain, ModifyResponse: c.receive,
		ErrorLog: log.New(io.Discard, "", 0), // of clients that have gone
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: e.Host})
			r.Out.Header.Set("Authorization", "Bearer owner") // the emulator's administrator
		}}
	c.front = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.front.EnableHTTP2 = true
	c.front.TLS = &tls.Config{Certificates: []tls.Certificate{c.certify()}, MinVersion: tls.VersionTLS12}
	c.front.StartTLS()
	c.proxy = httptest.NewServer(http.HandlerFunc(c.connect))
	t.Cleanup(func() {
		c.proxy.CloseClientConnections()
		c.proxy.Close()
		c.front.CloseClientConnections()
		c.front.Close()
		plain.CloseIdleConnections()
	})
	c.writeKey()
	return c
}

// healthyDatabase is a database of the emulator's mode, as the administration describes it.
func (c *fakeCloud) healthyDatabase() fakeDatabase {
	kind := "DATASTORE_MODE"
	if c.mode == emulator.Native {
		kind = "FIRESTORE_NATIVE"
	}
	return fakeDatabase{"type": kind, "databaseEdition": "STANDARD", "locationId": "eur3", "concurrencyMode": "OPTIMISTIC",
		"pointInTimeRecoveryEnablement": "POINT_IN_TIME_RECOVERY_ENABLED",
		"deleteProtectionState":         "DELETE_PROTECTION_ENABLED"}
}

// environ returns the variables of a process that uses the cloud.
func (c *fakeCloud) environ() []string {
	return []string{"HTTPS_PROXY=" + c.proxy.URL, "SSL_CERT_FILE=" + filepath.Join(c.dir, "ca.pem"), "NO_PROXY=",
		"GOOGLE_APPLICATION_CREDENTIALS=" + filepath.Join(c.dir, "key.json")}
}

// certify returns a certificate of all Google's names, and writes what makes a process trust it.
func (c *fakeCloud) certify() tls.Certificate {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), IsCA: true,
		NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"*.googleapis.com"}, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// writeKey writes the credentials of a user.
func (c *fakeCloud) writeKey() {
	c.t.Helper()
	text, err := json.Marshal(map[string]string{"type": "authorized_user", "client_id": "id", "client_secret": "secret",
		"refresh_token": "token"})
	if err != nil {
		c.t.Fatal(err)
	}
	c.write("key.json", text)
}

func (c *fakeCloud) write(name string, text []byte) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), text, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// connect is the proxy: whatever a client asks for, it gets the front.
func (c *fakeCloud) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.NotFound(w, r)
		return
	}
	to, err := net.Dial("tcp", c.front.Listener.Addr().String())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		c.t.Error(err)
		return
	}
	defer from.Close()
	fmt.Fprint(from, "HTTP/1.1 200 OK\r\n\r\n")
	replied := make(chan struct{})
	go func() {
		defer close(replied)
		_, _ = io.Copy(from, to) // it ends with either connection
		from.Close()
	}()
	_, _ = io.Copy(to, buffered)
	to.Close()
	<-replied
}

// serve is all of googleapis.com.
func (c *fakeCloud) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		c.serveData(w, r)
	case strings.HasSuffix(r.URL.Path, "/token"):
		answerJSON(w, map[string]any{"access_token": "owner", "token_type": "Bearer", "expires_in": 3600})
	default:
		c.administer(w, r)
	}
}

// serveData forwards a call, or refuses it.
func (c *fakeCloud) serveData(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body) // no call of these is a conversation
	if err != nil {
		return // the client has gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	method := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if code, message := c.verdict(r, method, body); code != codes.OK {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", fmt.Sprint(uint32(code)))
		w.Header().Set("Grpc-Message", url.PathEscape(message))
		return
	}
	c.mu.Lock()
	delay := c.delay
	c.mu.Unlock()
	if method == "Lookup" || method == "BatchGetDocuments" {
		time.Sleep(delay)
	}
	if reply := c.list(method, body); reply != nil {
		answerGRPC(w, reply)
		return
	}
	c.data.ServeHTTP(w, r)
}

// list answers a query of the names of kinds or namespaces, which the emulator of Datastore mode does not know; nil
// if a call is another one.
func (c *fakeCloud) list(method string, body []byte) proto.Message {
	var q dpb.RunQueryRequest
	if c.mode != emulator.Datastore || method != "RunQuery" || len(body) < 5 || proto.Unmarshal(body[5:], &q) != nil ||
		len(q.GetQuery().GetKind()) != 1 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := q.GetQuery().GetKind()[0].GetName()
	names, ok := c.listed[kind]
	if !ok {
		return nil
	}
	batch := &dpb.QueryResultBatch{EntityResultType: dpb.EntityResult_KEY_ONLY, ReadTime: timestamppb.Now(),
		MoreResults: dpb.QueryResultBatch_NO_MORE_RESULTS}
	for _, name := range names {
		last := &dpb.Key_PathElement{Kind: kind, IdType: &dpb.Key_PathElement_Name{Name: name}}
		if name == "" { // the default namespace
			last.IdType = &dpb.Key_PathElement_Id{Id: 1}
		}
		key := &dpb.Key{PartitionId: q.GetPartitionId(), Path: []*dpb.Key_PathElement{last}}
		batch.EntityResults = append(batch.EntityResults, &dpb.EntityResult{Entity: &dpb.Entity{Key: key}})
	}
	return &dpb.RunQueryResponse{Batch: batch}
}

// answerGRPC sends one message and the status OK.
func answerGRPC(w http.ResponseWriter, reply proto.Message) {
	message, err := proto.Marshal(reply)
	if err != nil {
		panic(err) // it is of our own making
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	header := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	_, _ = w.Write(append(header, message...)) // the client may have gone
	w.Header().Set("Grpc-Status", "0")
}

var inDatabase = regexp.MustCompile(`database_id=([^&]+)|databases(?:/|%2F)([^&/%]+)`)

// verdict returns what a call of data fails with.
func (c *fakeCloud) verdict(r *http.Request, method string, body []byte) (code codes.Code, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := "(default)"
	params, err := url.QueryUnescape(r.Header.Get("X-Goog-Request-Params"))
	if err != nil {
		return codes.InvalidArgument, err.Error()
	}
	if m := inDatabase.FindStringSubmatch(params); m != nil {
		id = m[1] + m[2]
	}
	db, ok := c.databases[id]
	isDatastore := strings.HasPrefix(r.URL.Path, "/google.datastore.")
	switch {
	case c.isDenied:
		return codes.PermissionDenied, "Missing or insufficient permissions."
	case !ok:
		return codes.NotFound, fmt.Sprintf("The database %s does not exist for project %s.", id, c.project)
	case isDatastore && db["type"] != "DATASTORE_MODE":
		return codes.FailedPrecondition, "The Cloud Datastore API is not available for a database in Firestore native mode."
	case !isDatastore && db["type"] == "DATASTORE_MODE":
		return codes.FailedPrecondition, "The Cloud Firestore API is not available for Firestore in Datastore Mode database."
	case c.refuse != nil:
		return c.refuse(method, body), c.message
	}
	return codes.OK, ""
}

// receive takes in a whole reply, so that its trailers are known before its headers are sent, and changes the time
// that the store tells in it.
func (c *fakeCloud) receive(r *http.Response) error {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		c.mu.Lock()
		offset := c.offset
		c.mu.Unlock()
		method := r.Request.URL.Path[strings.LastIndexByte(r.Request.URL.Path, '/')+1:]
		if offset != 0 && replyOf(method, c.mode) != nil {
			body, err = c.shiftClock(method, body, offset)
		}
	}
	r.Body.Close()
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return err
}

func (c *fakeCloud) shiftClock(method string, body []byte, offset time.Duration) (shifted []byte, err error) {
	for len(body) >= 5 { // a flag, a length, a message
		n := 5 + int(binary.BigEndian.Uint32(body[1:5]))
		reply := replyOf(method, c.mode)
		if err := proto.Unmarshal(body[5:n], reply); err != nil {
			return nil, err
		}
		if at := readTime(reply); at != nil {
			proto.Merge(at, timestamppb.New(at.AsTime().Add(offset)))
		}
		message, err := proto.Marshal(reply)
		if err != nil {
			return nil, err
		}
		shifted = binary.BigEndian.AppendUint32(append(shifted, 0), uint32(len(message)))
		shifted = append(shifted, message...)
		body = body[n:]
	}
	return shifted, nil
}

// replyOf returns an empty reply of a method that tells the time; nil if it does not.
func replyOf(method string, mode emulator.Mode) proto.Message {
	switch {
	case method == "Lookup":
		return &dpb.LookupResponse{}
	case method == "BatchGetDocuments":
		return &fpb.BatchGetDocumentsResponse{}
	case method == "RunQuery" && mode == emulator.Datastore:
		return &dpb.RunQueryResponse{}
	case method == "RunQuery":
		return &fpb.RunQueryResponse{}
	}
	return nil
}

func readTime(reply proto.Message) *timestamppb.Timestamp {
	switch r := reply.(type) {
	case *dpb.RunQueryResponse:
		return r.GetBatch().GetReadTime()
	case interface{ GetReadTime() *timestamppb.Timestamp }:
		return r.GetReadTime()
	}
	return nil
}

func answerJSON(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
}

var (
	ofDatabase = regexp.MustCompile(`^/v1/projects/[^/]+/databases/([^/]+)$`)
	ofFields   = regexp.MustCompile(`^/v1/projects/[^/]+/databases/[^/]+/collectionGroups/([^/]+)/fields$`)
)

// administer answers a call of the administration.
func (c *fakeCloud) administer(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var asked struct {
		Permissions []string `json:"permissions"`
	}
	_ = json.NewDecoder(r.Body).Decode(&asked) // most calls have no body
	if m := ofDatabase.FindStringSubmatch(r.URL.Path); m != nil && c.databases[m[1]] != nil && !c.isDenied {
		answerJSON(w, c.databases[m[1]])
		return
	}
	if m := ofFields.FindStringSubmatch(r.URL.Path); m != nil && !c.isDenied {
		answerJSON(w, map[string]any{"fields": c.describeFields(m[1])})
		return
	}
	if strings.HasSuffix(r.URL.Path, ":testIamPermissions") && !c.isDenied {
		answerJSON(w, map[string]any{"permissions": slices.DeleteFunc(asked.Permissions, func(p string) bool {
			return slices.Contains(c.lacking, p)
		})})
		return
	}
	code := http.StatusNotFound
	if c.isDenied {
		code = http.StatusForbidden
	}
	http.Error(w, `{"error": {"message": "refused"}}`, code)
}

func (c *fakeCloud) describeFields(kind string) (list []any) {
	for _, f := range c.fields {
		if f.kind != kind || !f.ttl && !f.own {
			continue
		}
		var indexes []any
		for _, order := range f.orders {
			indexes = append(indexes, map[string]any{"queryScope": "COLLECTION",
				"fields": []any{map[string]string{"order": order}}})
		}
		field := map[string]any{"name": "projects/p/databases/d/collectionGroups/" + kind + "/fields/" + f.name,
			"indexConfig": map[string]any{"usesAncestorConfig": !f.own, "indexes": indexes}}
		if f.ttl {
			field["ttlConfig"] = map[string]string{"state": "ACTIVE"}
		}
		list = append(list, field)
	}
	return list
}

// change changes the cloud between two calls.
func (c *fakeCloud) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

var (
	updateDatabase = regexp.MustCompile(`^gcloud firestore databases update --database='(.+)' ` +
		`--(enable-pitr|delete-protection)$`)
	updateField = regexp.MustCompile(`^gcloud firestore fields ttls update (\S+) --collection-group=(\S+) ` +
		`--database='(.+)' --disable-ttl$`)
	updateRole = regexp.MustCompile(`^gcloud iam roles update ROLE --project PROJECT --add-permissions=(\S+)$`)
)

// gcloud does what a command of the Google Cloud CLI does. It knows those that doctor advises.
func (c *fakeCloud) gcloud(command string) {
	c.t.Helper()
	c.change(func() {
		if m := updateDatabase.FindStringSubmatch(command); m != nil && c.databases[m[1]] != nil {
			if m[2] == "enable-pitr" {
				c.databases[m[1]]["pointInTimeRecoveryEnablement"] = "POINT_IN_TIME_RECOVERY_ENABLED"
			} else {
				c.databases[m[1]]["deleteProtectionState"] = "DELETE_PROTECTION_ENABLED"
			}
			return
		}
		if m := updateField.FindStringSubmatch(command); m != nil && c.databases[m[3]] != nil {
			for _, f := range c.fields {
				if f.name == m[1] && f.kind == m[2] {
					f.ttl = false
					return
				}
			}
		}
		if m := updateRole.FindStringSubmatch(command); m != nil {
			c.lacking = slices.DeleteFunc(c.lacking, func(p string) bool { return slices.Contains(strings.Split(m[1], ","), p) })
			return
		}
		c.t.Errorf("the cloud cannot do %q", command)
	})
}

// needsIndex has queries of a kind by two properties refused until their index is deployed.
func (c *fakeCloud) needsIndex(kind string, properties ...string) {
	c.change(func() {
		c.message = "no matching index found. recommended index is: ..."
		c.refuse = func(method string, request []byte) codes.Code {
			for _, word := range append([]string{kind}, properties...) {
				if !bytes.Contains(request, []byte(word)) {
					return codes.OK
				}
			}
			if strings.HasPrefix(method, "Run") {
				return codes.FailedPrecondition
			}
			return codes.OK
		}
	})
}

// deploy makes the indexes of a file that reaper indexes has printed.
func (c *fakeCloud) deploy(text string) {
	c.t.Helper()
	if c.mode == emulator.Datastore {
		if !strings.Contains(text, "- kind: Order\n") {
			c.t.Errorf("there is no index to deploy:\n%s", text)
		}
		c.change(func() { c.refuse = nil })
		return
	}
	var file struct {
		Indexes        []struct{ CollectionGroup string }
		FieldOverrides []struct {
			CollectionGroup, FieldPath string
			Indexes                    []struct{ Order, QueryScope string }
		}
	}
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		c.t.Fatalf("%v:\n%s", err, text)
	}
	if len(file.Indexes)+len(file.FieldOverrides) == 0 {
		c.t.Errorf("there is no index to deploy:\n%s", text)
	}
	c.change(func() {
		for _, i := range file.Indexes {
			if i.CollectionGroup == "Order" {
				c.refuse = nil
			}
		}
		for _, o := range file.FieldOverrides {
			c.fields = slices.DeleteFunc(c.fields, func(f *fakeField) bool {
				return f.kind == o.CollectionGroup && f.name == o.FieldPath
			})
			field := &fakeField{kind: o.CollectionGroup, name: o.FieldPath, own: true}
			for _, i := range o.Indexes {
				if i.QueryScope == "COLLECTION" && i.Order != "" {
					field.orders = append(field.orders, i.Order)
				}
			}
			c.fields = append(c.fields, field)
		}
	})
}
