package archive

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"path"
	"strconv"
	"strings"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"

	"github.com/reaper-ttl/reaper/store"
)

// A googleBucket keeps objects in a bucket of Google Cloud Storage, below a prefix.
type googleBucket struct {
	bucket *storage.BucketHandle
	name   string
	prefix string // empty, or ends in a slash
}

func newGoogleBucket(ctx context.Context, bucket, prefix string) (*googleBucket, error) {
	// Emulators know no other reads. The client gets tokens for as long as it lives.
	client, err := storage.NewClient(context.WithoutCancel(ctx), storage.WithJSONReads())
	if err != nil {
		return nil, fmt.Errorf("open gs://%s: %w", path.Join(bucket, prefix), err)
	}
	if prefix != "" {
		prefix += "/"
	}
	return &googleBucket{client.Bucket(bucket), bucket, prefix}, nil
}

func (b *googleBucket) object(name string) *storage.ObjectHandle {
	return b.bucket.Object(b.prefix + name)
}

const (
	hintObjectRole = "check the credentials and their role on the bucket: reaper needs to create, get and list objects"
	hintBucket     = "check the name of the bucket, and create it first"
)

// failed returns an error that names what was done, and to what.
func (b *googleBucket) failed(what, name string, err error) error {
	switch {
	case errors.Is(err, storage.ErrObjectNotExist):
		err = ErrNotFound
	case errors.Is(err, storage.ErrBucketNotExist):
		err = store.WithHint(err, hintBucket)
	case hasCode(err, http.StatusUnauthorized), hasCode(err, http.StatusForbidden):
		err = store.WithHint(err, hintObjectRole)
	}
	return fmt.Errorf("%s gs://%s/%s%s: %w", what, b.name, b.prefix, name, err)
}

func hasCode(err error, code int) bool {
	var e *googleapi.Error
	return errors.As(err, &e) && e.Code == code
}

// Create is a method of [Bucket]. The service confirms an object when it is durable.
func (b *googleBucket) Create(ctx context.Context, name string, data []byte) (generation string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of an upload that was not closed
	to := b.object(name).If(storage.Conditions{DoesNotExist: true}).NewWriter(ctx)
	to.ChunkSize = 0 // one request: data is in memory already
	to.ContentType = "application/zstd"
	to.CRC32C, to.SendCRC32C = crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)), true
	if _, err = to.Write(data); err == nil {
		err = to.Close()
	}
	if err == nil {
		return strconv.FormatInt(to.Attrs().Generation, 10), nil
	}
	if !hasCode(err, http.StatusPreconditionFailed) {
		return "", b.failed("create", name, err)
	}
	// An earlier try may have written it.
	there, err := b.object(name).Attrs(ctx)
	if err != nil {
		return "", b.failed("create", name, err)
	}
	sum := md5.Sum(data)
	if there.Size != int64(len(data)) || there.CRC32C != to.CRC32C ||
		len(there.MD5) > 0 && string(there.MD5) != string(sum[:]) {
		return "", b.failed("create", name, ErrExists)
	}
	return strconv.FormatInt(there.Generation, 10), nil
}

// Open is a method of [Bucket].
func (b *googleBucket) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	in, err := b.object(name).NewReader(ctx)
	if err != nil {
		return nil, b.failed("open", name, err)
	}
	return in, nil
}

// Stat is a method of [Bucket].
func (b *googleBucket) Stat(ctx context.Context, name string) (Object, error) {
	if err := checkName(name); err != nil {
		return Object{}, err
	}
	there, err := b.object(name).Attrs(ctx)
	if err != nil {
		return Object{}, b.failed("look at", name, err)
	}
	return b.describe(there), nil
}

func (b *googleBucket) describe(o *storage.ObjectAttrs) Object {
	return Object{Name: strings.TrimPrefix(o.Name, b.prefix), Size: o.Size,
		Generation: strconv.FormatInt(o.Generation, 10), Created: o.Created.UTC()}
}

// List is a method of [Bucket].
func (b *googleBucket) List(ctx context.Context, prefix, from string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		q := &storage.Query{Prefix: b.prefix + prefix, StartOffset: b.prefix + from}
		err := q.SetAttrSelection([]string{"Name", "Size", "Generation", "Created"})
		if err != nil {
			yield(Object{}, b.failed("list", prefix, err))
			return
		}
		for objects := b.bucket.Objects(ctx, q); ; {
			o, err := objects.Next()
			switch {
			case errors.Is(err, iterator.Done):
				return
			case err != nil:
				yield(Object{}, b.failed("list", prefix, err))
				return
			case !yield(b.describe(o), nil):
				return
			}
		}
	}
}

// Remove is a method of [Bucket].
func (b *googleBucket) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := b.object(name).Delete(ctx); err != nil {
		return b.failed("remove", name, err)
	}
	return nil
}
